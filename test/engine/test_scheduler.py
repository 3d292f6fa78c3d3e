# SPDX-License-Identifier: Apache-2.0
"""What goes into a decode step, and that drafts change only how many steps a text takes."""

from __future__ import annotations

import math

import engine_toy
import pytest
from engine_toy import EOS, build, recite, see
from hypothesis import given
from hypothesis import strategies as st

from oxygen_ros.engine import Budget, Engine, FinishedText, FinishReason, TextTask
from oxygen_ros.engine.encoded import EncodedObservation
from oxygen_ros.engine.request import RequestState, TextRequest
from oxygen_ros.engine.scheduler import Scheduler
from oxygen_ros.engine.slots import SlotPool
from oxygen_ros.engine.speculation import Drafts
from oxygen_ros.models.interface import Prefix


def _request(
    number: int, prefix_slot: int, pending: int, *, tokens: int = 0, kind: str = "memory"
) -> TextRequest:
    encoded = EncodedObservation(SlotPool("prefix", 8), prefix_slot, Prefix(5, 8), see(1), tick=1)
    return TextRequest(
        id=number,
        task=TextTask(kind=kind, prompt="", max_tokens=20),
        encoded=encoded,
        state=RequestState.LIVE,
        suffix_slot=number,
        is_forked=True,
        adapter=0,
        tick_asked=1,
        asked_at=0.0,
        eos_ids=(EOS,),
        pending=[1] * pending,
        tokens=[1] * tokens,
    )


@given(
    requests=st.lists(
        st.tuples(st.integers(0, 7), st.integers(1, 12), st.booleans()), min_size=1, max_size=12
    ),
    max_rows=st.integers(1, 24),
    draft=st.integers(0, 5),
)
def test_a_step_serves_all_then_prompts_then_drafts(
    requests: list[tuple[int, int, bool]], max_rows: int, draft: int
) -> None:
    drafts = Drafts(draft)
    drafts.remember("memory", (1,) * 20)
    scheduler = Scheduler(64, drafts, lambda _: False)
    for number, (slot, pending, finished) in enumerate(requests):
        request = _request(number, slot, pending)
        request.finish_reason = FinishReason.EOS if finished else None
        scheduler.live.append(request)
    unfinished = [request for request in scheduler.live if not request.is_finished]
    plan = scheduler.plan(max_rows)
    if not unfinished:
        assert plan is None
        return
    assert plan is not None
    assert plan.rows <= max_rows
    served = sorted(plan.grants, key=lambda grant: grant.request.id)
    assert [grant.request for grant in served] == unfinished[:max_rows]  # all, oldest first
    slots = [grant.request.encoded.slot for grant in plan.grants]
    assert slots == sorted(slots)  # rows of one prefix stand together
    assert all(1 <= grant.known <= len(grant.request.pending) for grant in served)
    short = [grant.known < len(grant.request.pending) for grant in served]
    # Once a prompt is cut, no row is left for younger prompts, nor for any draft.
    if True in short:
        assert all(grant.known == 1 for grant in served[short.index(True) + 1 :])
        assert not any(grant.draft for grant in served)
        assert plan.rows == max_rows
    spare = max_rows - sum(grant.known for grant in served)
    assert sum(len(grant.draft) for grant in served) == min(spare, draft * len(served))
    assert all(
        grant.wanted == (0 if cut else 1 + len(grant.draft)) for grant, cut in zip(served, short, strict=True)
    )


def test_only_one_may_be_asked_for() -> None:
    scheduler = Scheduler(64, Drafts(0), lambda _: False)
    first, second = _request(0, 0, 3), _request(1, 1, 2)
    scheduler.live.append(first)
    scheduler.live.append(second)
    plan = scheduler.plan(8, only=second)
    assert plan is not None
    assert [(grant.request.id, grant.known) for grant in plan.grants] == [(1, 2)]


def test_more_texts_than_rows_serves_the_oldest_to_their_ends_first() -> None:
    engine, model = build(max_rows=2)
    with engine.observe(see(1)) as encoded:
        ids = [engine.ask(encoded, TextTask(kind="memory", prompt="a", max_tokens=4 + n)) for n in range(4)]
    ended: list[int] = []
    while engine.live:
        ended += [text.id for text in engine.advance(Budget(steps=1, rows=2))]
        assert model.steps[-1] <= 2
    assert sorted(ended) == ids
    assert set(ended[:2]) <= {ids[0], ids[1], ids[2]}
    assert ended[-1] in ids[2:]


def test_a_prompt_goes_through_in_one_step_when_rows_allow() -> None:
    engine, model = build()
    with engine.observe(see(1)) as encoded:
        engine.ask(encoded, TextTask(kind="memory", prompt="a" * 10, max_tokens=3))
        engine.ask(encoded, TextTask(kind="narration", prompt="b" * 7, max_tokens=3))
    engine.advance(Budget(steps=1))
    assert model.steps == [17]
    assert all(len(request.tokens) == 1 for request in engine._scheduler.live)


# -- drafts --------------------------------------------------------------------------------------


def _say(engine: Engine, stamp: int, content: int, task: TextTask) -> FinishedText:
    """One text to its end."""
    with engine.observe(see(stamp, content)) as encoded:
        engine.ask(encoded, task)
    done: list[FinishedText] = []
    while not done:
        done = engine.advance(Budget(steps=1))
        engine.check_integrity()
    return done[0]


@pytest.mark.parametrize("draft", [1, 2, 3, 5, 8, 40])
@pytest.mark.parametrize("reason", [FinishReason.EOS, FinishReason.LENGTH])
def test_a_draft_equal_to_the_text_takes_a_fraction_of_the_steps(draft: int, reason: FinishReason) -> None:
    """N tokens and their end come d + 1 a step."""
    task = TextTask(kind="memory", prompt="abc", max_tokens=18)
    alike = [c for c in range(250) if recite(see(1, c), task).reason is reason]
    content = max(alike, key=lambda c: len(recite(see(1, c), task).tokens))
    engine, _ = build(draft=draft)
    first, second = (_say(engine, stamp, content, task) for stamp in (1, 2))
    alone = recite(see(1, content), task)
    assert first.tokens == second.tokens == alone.tokens
    outputs = len(alone.tokens) + (reason is FinishReason.EOS)
    assert first.steps == outputs
    assert second.steps == math.ceil(outputs / (draft + 1))


@given(contents=st.lists(st.integers(0, 4), min_size=1, max_size=8), draft=st.integers(1, 6))
def test_a_wrong_draft_costs_rows_and_nothing_else(contents: list[int], draft: int) -> None:
    """Texts that differ from the last one: same tokens, never more steps than without drafts."""
    task = TextTask(kind="memory", prompt="abc", max_tokens=12)
    engine, _ = build(draft=draft)
    for stamp, content in enumerate(contents):
        text = _say(engine, stamp, content, task)
        alone = recite(see(stamp, content), task)
        assert (text.tokens, text.finish_reason) == (alone.tokens, alone.reason)
        assert text.steps <= len(alone.tokens) + (alone.reason is FinishReason.EOS)


def test_drafts_follow_a_changed_word() -> None:
    """After one different token the draft finds its place again from the pair before it."""
    last = (1, 2, 3, 4, 5, 6, 7)
    drafts = Drafts(3)
    drafts.remember("memory", last)
    assert drafts.propose("memory", [], 9) == [1, 2, 3]
    assert drafts.propose("memory", [1, 2], 9) == [3, 4, 5]
    assert drafts.propose("memory", [1, 2, 3, 4, 5, 6], 9) == [7]
    assert drafts.propose("memory", [1, 2, 3, 4, 5, 6, 7], 9) == []
    assert drafts.propose("memory", [1, 2, 9], 9) == []
    assert drafts.propose("memory", [1, 2, 9, 3], 9) == []
    assert drafts.propose("memory", [1, 2, 9, 3, 4], 9) == [5, 6, 7]
    assert drafts.propose("memory", [9, 9, 2, 3], 2) == [4, 5]  # not at its place, but after the same pair
    assert drafts.propose("narration", [], 9) == []
    assert drafts.propose("memory", [1], 0) == []


def test_an_unfinished_text_is_no_draft() -> None:
    """Only texts that came to their own end are repeated by a robot."""
    engine, model = build(draft=4)
    with engine.observe(see(1)) as encoded:
        engine.ask(encoded, TextTask(kind="memory", prompt="abc", max_tokens=18))
    engine.advance(Budget(steps=2))
    engine.cancel(FinishReason.CANCELLED)
    with engine.observe(see(2)) as encoded:
        engine.ask(encoded, TextTask(kind="memory", prompt="abc", max_tokens=18))
    engine.advance(Budget(steps=1))
    assert model.steps[-1] == 3


def test_sampled_texts_get_no_drafts() -> None:
    engine, model = build(draft=4)
    hot = TextTask(kind="memory", prompt="abc", max_tokens=6, temperature=1.0)
    _say(engine, 1, 0, hot)
    _say(engine, 2, 0, hot)
    assert set(model.steps) <= {1, 3}


def test_drafts_never_leave_their_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slot without room to spare: prompt and limit fill it to the last place."""
    table = engine_toy._LOGITS.copy()
    table[:, EOS] = -1e9
    monkeypatch.setattr(engine_toy, "_LOGITS", table)
    engine, model = build(draft=8, suffix_tokens=13)
    task = TextTask(kind="memory", prompt="abc", max_tokens=10)
    texts = [_say(engine, stamp, 0, task) for stamp in range(3)]
    assert len({text.tokens for text in texts}) == 1
    assert len(texts[0].tokens) == 10
    assert max(model.steps) == 3 + 8
    eager, model = build(draft=40)
    for stamp in range(2):
        _say(eager, stamp, 0, task)
    # The whole second text in one step: three of the prompt and nine drafts; the tenth is the outcome.
    assert model.steps[-1] == 12
