"""A language model as judge, behind any server with OpenAI's chat-completions interface.

A judge that fails is not a judge that gives 0: failures are counted apart, and too many make the metric
:class:`~kvcomp_eval.metrics.result.NotComputed`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from kvcomp_eval.metrics.result import NotComputed

URL_VARIABLE = "KVCOMP_JUDGE_URL"
MODEL_VARIABLE = "KVCOMP_JUDGE_MODEL"
KEY_VARIABLE = "KVCOMP_JUDGE_KEY"

Messages = Sequence[dict[str, str]]

#: "score" with whatever quotes a model puts around it, then a number not followed by more of one.
_SCORE = re.compile(r"""\bscore\b['"`*\s]*[:=]['"`*\s]*(-?\d+(?:\.\d+)?)(?![\d.]*\d)""", re.IGNORECASE)
_NUMBER = re.compile(r"""^\W*?(-?\d+(?:\.\d+)?)(?:\s*/\s*\d+)?[\s.`'"}]*$""")
_LOWEST, _HIGHEST = 0.0, 5.0
#: Says nothing of a document, but has to be answered like any other question.
_PROBE: Messages = [{"role": "user", "content": "Reply with exactly this and nothing else: {'score': 5}"}]


class JudgeError(RuntimeError):
    """The judge is not configured, or does not answer."""


@dataclass(frozen=True)
class Judgement:
    """One answer of the judge.

    Parameters
    ----------
    score : float or None
        None if the judge failed.
    reply : str
        Its words, empty if none arrived.
    error : str or None
        Why there is no score.
    """

    score: float | None
    reply: str = ""
    error: str | None = None


@dataclass(frozen=True)
class JudgeSummary:
    """A set of judgements.

    Parameters
    ----------
    mean : float or NotComputed
        Over those that have a score.
    num_judged, num_failed : int
    model : str
    """

    mean: float | NotComputed
    num_judged: int
    num_failed: int
    model: str


@dataclass(frozen=True)
class Judge:
    """Where the judge is and how it is asked.

    Parameters
    ----------
    url : str
        Base URL ("http://host:8000", "http://host:8000/v1") or the full one that ends in "/chat/completions".
    model : str
        Name of the model; recorded with the scores.
    key : str
        Sent as bearer token.
    concurrency : int
        Questions in flight at once.
    retries : int
        Further tries after a failed request (connection, time-out, 408, 409, 429, 5xx; waits double each time) and
        after a reply without a score.
    timeout : float
        Seconds per try.
    max_tokens : int
        Length of a reply.
    """

    url: str
    model: str
    key: str = "none"
    concurrency: int = 8
    retries: int = 4
    timeout: float = 60.0
    max_tokens: int = 64

    @classmethod
    def from_environment(cls, **settings: Any) -> Judge:
        """Read KVCOMP_JUDGE_URL, KVCOMP_JUDGE_MODEL and, if the server wants one, KVCOMP_JUDGE_KEY."""
        missing = [name for name in (URL_VARIABLE, MODEL_VARIABLE) if not os.environ.get(name)]
        if missing:
            raise JudgeError(
                f"{' and '.join(missing)} not set; the judge needs {URL_VARIABLE} (a server with OpenAI's "
                f"chat-completions interface), {MODEL_VARIABLE}, and {KEY_VARIABLE} if the server asks for a key."
            )
        key = os.environ.get(KEY_VARIABLE) or "none"
        return cls(os.environ[URL_VARIABLE], os.environ[MODEL_VARIABLE], key, **settings)

    @property
    def base_url(self) -> str:
        """URL to which the client adds "/chat/completions"."""
        url = self.url.rstrip("/").removesuffix("/chat/completions")
        return url if urlsplit(url).path else f"{url}/v1"

    def preflight(self) -> None:
        """Ask one question before anything is generated; raise :class:`JudgeError` if no score comes back."""
        judgement = self.score([_PROBE])[0]
        if judgement.error is not None:
            raise JudgeError(
                f"The judge {self.model} at {self.base_url} does not work: {judgement.error}. Check {URL_VARIABLE}, "
                f"{MODEL_VARIABLE} and {KEY_VARIABLE}."
            )

    def score(self, questions: Sequence[Messages]) -> list[Judgement]:
        """Ask every question; judgements are in the order of the questions, failed ones included."""
        from openai import OpenAI

        with (
            OpenAI(base_url=self.base_url, api_key=self.key, timeout=self.timeout, max_retries=self.retries) as client,
            ThreadPoolExecutor(self.concurrency) as pool,
        ):
            return list(pool.map(lambda messages: self._ask(client, messages), questions))

    def _ask(self, client: Any, messages: Messages) -> Judgement:
        """One question until there is a score; the client itself repeats failed requests."""
        from openai import OpenAIError

        reply = ""
        for _ in range(self.retries + 1):
            try:
                completion = client.chat.completions.create(
                    model=self.model, messages=list(messages), temperature=0, max_tokens=self.max_tokens
                )
                reply = completion.choices[0].message.content or ""
            except OpenAIError as error:
                return Judgement(None, error=f"{type(error).__name__}: {error}")
            except (AttributeError, IndexError, TypeError, ValueError) as error:
                return Judgement(None, error=f"the server's answer is not a chat completion ({error})")
            score = parse_score(reply)
            if score is not None:
                return Judgement(score, reply)
        return Judgement(None, reply, f"no score from {_LOWEST:g} to {_HIGHEST:g} in the reply {reply[:200]!r}")


def parse_score(reply: str) -> float | None:
    """Score in a reply: a dictionary in Python or JSON, in a code fence or not, with odd quotes, or a bare number.

    Returns
    -------
    float or None
        None if there is none from 0 to 5, or different ones.

    Examples
    --------
    >>> parse_score("```json\\n{'score': 4.8}\\n```")
    4.8
    """
    found = {float(number) for number in _SCORE.findall(reply)}
    if not found and (bare := _NUMBER.match(reply.strip())):
        found = {float(bare[1])}
    score = found.pop() if len(found) == 1 else None
    return score if score is not None and _LOWEST <= score <= _HIGHEST else None


def summarise(judgements: Sequence[Judgement], model: str, max_failed_share: float = 0.05) -> JudgeSummary:
    """Mean score; not computed if more than ``max_failed_share`` of the judgements failed, or there are none."""
    scores = [judgement.score for judgement in judgements if judgement.score is not None]
    failed = [judgement.error for judgement in judgements if judgement.score is None]
    mean: float | NotComputed
    if not judgements:
        mean = NotComputed("nothing was judged")
    elif len(failed) > max_failed_share * len(judgements):
        mean = NotComputed(
            f"the judge failed on {len(failed)} of {len(judgements)} answers (at most {max_failed_share:.0%} may); "
            f"first failure: {failed[0]}"
        )
    else:
        mean = sum(scores) / len(scores)
    return JudgeSummary(mean, len(scores), len(failed), model)
