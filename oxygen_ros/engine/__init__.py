# SPDX-License-Identifier: Apache-2.0
"""One prefix, many readers, resumable text. No ROS, no model family.

The idea: encoding an observation is expensive, so each tick does it once, into a *prefix slot*. The action
expert reads the prefix, and its chunk leaves. Texts asked about the observation read it too and add only a
*suffix* of their own: prompt and answer so far. An unfinished text keeps its prefix and its suffix slot and
goes on in the next tick. Decode steps are few per tick, and a tick that comes due waits for one of them at
most; one step carries a row of every text under way, of whatever observation, so that the weights are read
once for all of them. Slots are made at the start and counted.

In reading order:

    engine       observe, act, ask, advance: everything that happens to a prefix and to a text
    baselines    the modes it is compared with
    slots        numbers with reference counts
    encoded      one encoded observation in its slot
    request      a text request, from asked to ended
    scheduler    which tokens of which request are the next step
    speculation  drafts for spare rows
    step_runner  the step itself, on the device
    sampling     the next token from its logits
    noise        repeatable random numbers
    budget       when a tick's text has to stop
    capacity     slots for the largest configured load
    counters     what is counted and timed
    integrity    check that slots and requests agree
    kinds        text kinds as data
    session      one robot's run: what is asked at which tick
    feedback     texts fed back into the prompt
"""

from oxygen_ros.engine.baselines import MODES, make_engine
from oxygen_ros.engine.budget import Budget
from oxygen_ros.engine.capacity import Load, plan_capacity, ticks_of_text
from oxygen_ros.engine.encoded import EncodedObservation
from oxygen_ros.engine.engine import Engine
from oxygen_ros.engine.kinds import QUESTION, STANDARD_KINDS, TextKind
from oxygen_ros.engine.request import FinishedText, FinishReason, TextTask
from oxygen_ros.engine.session import Session, StartedTick, TickReport, UnaskedQuestion

__all__ = [
    "MODES",
    "QUESTION",
    "STANDARD_KINDS",
    "Budget",
    "EncodedObservation",
    "Engine",
    "FinishReason",
    "FinishedText",
    "Load",
    "Session",
    "StartedTick",
    "TextKind",
    "TextTask",
    "TickReport",
    "UnaskedQuestion",
    "make_engine",
    "plan_capacity",
    "ticks_of_text",
]
