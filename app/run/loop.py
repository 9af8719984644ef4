"""Ask, listen, act, repeat."""

from app.run.act import Hands
from app.run.answer import Answer, answered, closing_answer, is_blank
from app.run.assembly import CUT_OFF
from app.run.listen import Ears
from app.run.prompt import NUDGE
from app.run.talk import Talk


async def run_loop(talk: Talk, ears: Ears, hands: Hands, *, max_rounds: int) -> Answer:
    """Let the model and the tools talk until there is an answer.

    Raises:
        RunError: The model could not be asked, or its stream broke.
    """
    may_ask_again = True
    cut_offs = 0
    for _ in range(max_rounds):
        reply = await ears.hear_within_window(talk, talk.question)
        if is_blank(reply) and may_ask_again:
            may_ask_again = False
            reply = await ears.hear_within_window(talk, lambda: talk.nudge(NUDGE))
        if not reply.calls:
            return answered(reply, talk, ears, called=hands.called)
        if reply.finish_reason in CUT_OFF:
            cut_offs += 1
            if cut_offs > hands.limits.cut_off_retries:
                return answered(reply, talk, ears, called=hands.called)
        try:
            answers = await hands.answer_calls(reply)
        except BaseException:
            # What ran has run, also where the run is stopped: whoever goes on with the conversation is to know.
            talk.say_round(reply, hands.answered(reply))
            raise
        talk.say_round(reply, answers.messages)
        talk.show(answers.pictures)
    return await closing_answer(talk, ears, max_rounds=max_rounds, called=hands.called)
