# SPDX-License-Identifier: Apache-2.0
"""One prefix, many readers, resumable text. No ROS, no model family.

The idea: encoding an observation costs much, so each tick does it once, into a *frame*. The action
expert reads the frame, and its chunk leaves. Texts asked about the frame read it too and add only a
*suffix* of their own: prompt and answer so far. A text that is not through stays where it is, frame and
suffix, and goes on in the next tick. Decode steps are few per tick, and a tick that comes due waits for
no more than the one that runs; one step carries a row of every text under way, of whatever frame, so that
the weights are read once for all of them. Slots for frames and suffixes are made at the start and counted.

In reading order:

    engine       observe, act, ask, advance: frames and actions, and texts that start from a frame
    slots        numbers with reference counts: what is shared, and until when
    frame        one prefix cache in its slot
    request      what may be asked, how far it has come, how it ended
    texts        the course of every text: asked, admitted, moved forward, ended
    admission    before it has a slot
    scheduler    which tokens of which request are the next step
    speculation  guesses for the rows to spare
    decoder      the step itself, on the device
    sampling     the next token out of its logits
    noise        chance that can be repeated
    budget       when a tick's text has to stop
    ending       what is told of a text
    capacity     why nothing grows: slots for the worst that is configured
    counters     what is counted and timed
    integrity    the proof that the slots' accounts agree
    session      one robot's run: what is asked at which tick
    feedback     texts on their way back into the prompt
"""

from oxygen_ros.engine.budget import Budget
from oxygen_ros.engine.capacity import Load, plan_capacity, ticks_of_text
from oxygen_ros.engine.engine import MODES, Engine
from oxygen_ros.engine.frame import Frame
from oxygen_ros.engine.request import (
    Answer,
    FinishedText,
    FinishReason,
    Memory,
    Narration,
    Subtask,
    TextTask,
)
from oxygen_ros.engine.session import Recurring, Session, TickReport

__all__ = [
    "MODES",
    "Answer",
    "Budget",
    "Engine",
    "FinishReason",
    "FinishedText",
    "Frame",
    "Load",
    "Memory",
    "Narration",
    "Recurring",
    "Session",
    "Subtask",
    "TextTask",
    "TickReport",
    "plan_capacity",
    "ticks_of_text",
]
