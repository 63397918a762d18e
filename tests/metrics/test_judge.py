"""The judge against a real HTTP server on loopback."""

from __future__ import annotations

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from kvcomp_eval.metrics.judge import Judge, JudgeError, Judgement, parse_score, summarise
from kvcomp_eval.metrics.result import NotComputed
from kvcomp_eval.metrics.videochatgpt import DIMENSIONS, consistency_messages, judge_messages


class Server:
    """Answers chat completions with the replies put in ``plan``: a text, a status code or a delay in seconds."""

    def __init__(self):
        self.plan = []
        self.requests = []
        self.in_flight = self.most_in_flight = 0
        self.lock = threading.Lock()
        owner = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                owner.answer(self)

            def log_message(self, *_):
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}"
        threading.Thread(target=self.http.serve_forever, daemon=True).start()

    def answer(self, handler):
        body = json.loads(handler.rfile.read(int(handler.headers["Content-Length"])))
        with self.lock:
            self.requests.append((handler.path, handler.headers["Authorization"], body))
            reply = self.plan.pop(0) if len(self.plan) > 1 else self.plan[0]
            self.in_flight += 1
            self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            if isinstance(reply, float):
                time.sleep(reply)
                reply = "{'score': 1}"
            status = reply if isinstance(reply, int) else 200
            message = {"role": "assistant", "content": reply}
            choices = [{"index": 0, "finish_reason": "stop", "message": message}]
            completion = {"id": "1", "object": "chat.completion", "created": 0, "model": "m", "choices": choices}
            content = json.dumps(completion if status == 200 and reply != "no completion" else {"detail": "x"}).encode()
            handler.send_response(status)
            handler.send_header("Content-Type", "application/json")
            # The client's own waits between tries are half a second and more.
            handler.send_header("retry-after-ms", "1")
            handler.send_header("Content-Length", str(len(content)))
            handler.end_headers()
            handler.wfile.write(content)
        except OSError:
            pass  # The client gave up waiting.
        finally:
            with self.lock:
                self.in_flight -= 1


@pytest.fixture
def server(monkeypatch):
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    server = Server()
    yield server
    server.http.shutdown()
    server.http.server_close()


def judge(server, **settings):
    return Judge(server.url, "some-model", "secret", **{"retries": 1, **settings})


QUESTION = [{"role": "user", "content": "How good?"}]


@pytest.mark.parametrize("suffix", ["", "/", "/v1", "/v1/chat/completions"])
def test_request_as_sent(server, suffix):
    server.plan = ["{'score': 4}"]
    got = Judge(server.url + suffix, "some-model", "secret").score([QUESTION])
    assert got == [Judgement(4.0, "{'score': 4}")]
    [(path, authorization, body)] = server.requests
    assert path == "/v1/chat/completions"
    assert authorization == "Bearer secret"
    assert body == {"model": "some-model", "messages": QUESTION, "temperature": 0, "max_tokens": 64}


def test_fenced_reply(server):
    server.plan = ["```python\n{'score': 4.8}\n```"]
    assert judge(server).score([QUESTION])[0].score == 4.8


@pytest.mark.parametrize("failure", [500, 429, "I cannot say.", ""])
def test_one_failure_is_made_good_by_a_retry(server, failure):
    server.plan = [failure, "{'score': 3}"]
    assert judge(server).score([QUESTION])[0].score == 3
    assert len(server.requests) == 2


@pytest.mark.parametrize(
    ("failure", "tries", "error"),
    [(500, 3, "InternalServerError"), (401, 1, "AuthenticationError"), ("no score", 3, "no score from 0 to 5")],
)
def test_lasting_failure_has_no_score(server, failure, tries, error):
    server.plan = [failure]
    [judgement] = judge(server, retries=2).score([QUESTION])
    assert judgement.score is None
    assert error in judgement.error
    assert len(server.requests) == tries


def test_answer_that_is_no_chat_completion(server):
    server.plan = ["no completion"]
    [judgement] = judge(server).score([QUESTION])
    assert judgement.score is None
    assert "not a chat completion" in judgement.error


def test_slow_server_times_out(server):
    server.plan = [1.0]
    [judgement] = judge(server, timeout=0.1, retries=0).score([QUESTION])
    assert judgement.score is None
    assert "Timeout" in judgement.error


def test_no_server(server):
    server.http.shutdown()
    server.http.server_close()
    with pytest.raises(JudgeError, match="some-model at .*does not work: APIConnectionError"):
        judge(server, retries=0).preflight()


def test_preflight_passes_on_a_working_judge(server):
    server.plan = ["{'score': 5}"]
    judge(server).preflight()
    assert len(server.requests) == 1


def test_concurrency_is_bounded_and_order_kept(server):
    server.plan = [0.05] * 6 + ["{'score': 2}"]
    judgements = judge(server, concurrency=3).score([QUESTION] * 12)
    assert 2 <= server.most_in_flight <= 3
    assert [judgement.score for judgement in judgements].count(1.0) == 6
    # The questions that were asked first met the delays.
    assert [judgement.score for judgement in judgements[-3:]] == [2.0] * 3


def test_failures_are_counted_apart_and_are_not_zeros(server):
    server.plan = ["{'score': 4}", "what?", "{'score': 2}"]
    summary = summarise(judge(server, retries=0, concurrency=1).score([QUESTION] * 3), "m", max_failed_share=0.5)
    assert (summary.mean, summary.num_judged, summary.num_failed) == (3.0, 2, 1)


def test_too_many_failures_make_no_figure():
    failed = Judgement(None, error="no answer")
    summary = summarise([Judgement(5.0), failed], "m")
    assert isinstance(summary.mean, NotComputed)
    assert "failed on 1 of 2 answers (at most 5% may); first failure: no answer" in summary.mean.reason
    assert (summary.num_judged, summary.num_failed) == (1, 1)
    assert isinstance(summarise([], "m").mean, NotComputed)


def test_environment(monkeypatch):
    for name in ("URL", "MODEL", "KEY"):
        monkeypatch.delenv(f"KVCOMP_JUDGE_{name}", raising=False)
    with pytest.raises(JudgeError, match="KVCOMP_JUDGE_URL and KVCOMP_JUDGE_MODEL not set"):
        Judge.from_environment()
    monkeypatch.setenv("KVCOMP_JUDGE_URL", "http://here")
    monkeypatch.setenv("KVCOMP_JUDGE_MODEL", "m")
    assert Judge.from_environment(retries=2) == Judge("http://here", "m", retries=2)


@pytest.mark.parametrize(
    ("reply", "score"),
    [
        ("{'score': 4}", 4),
        ("{'score': 4.8}", 4.8),
        ("```python\n{'score': 4.8}\n```", 4.8),
        ('```json\n{\n  "score": 3\n}\n```', 3),
        ("{''score': 4.8}", 4.8),
        ('{"score": "4"}', 4),
        ("{'score': 4, 'reason': 'all 3 there'}", 4),
        ("**Score**: 3", 3),
        ("4", 4),
        ("4/5", 4),
        ("", None),
        ("I give it a four", None),
        ("{'score': 40}", None),
        ("{'score': -1}", None),
        ("{'score': 4} or {'score': 3}", None),
    ],
)
def test_replies(reply, score):
    assert parse_score(reply) == score


def test_questions_of_video_chatgpt():
    texts = {name: judge_messages(name, "Q?", "A!", "P.") for name in DIMENSIONS if name != "consistency"}
    for system, user in texts.values():
        assert (system["role"], user["role"]) == ("system", "user")
        assert "Question: Q?\nCorrect Answer: A!\nPredicted Answer: P.\n" in user["content"]
    assert len({system["content"] for system, _ in texts.values()}) == 4
    assert "temporal" in texts["temporal"][0]["content"]
    _, user = consistency_messages(("Q1", "Q2"), "A!", ("P1", "P2"))
    assert "Question 2: Q2\nCorrect Answer: A!\nPredicted Answer to Question 1: P1\n" in user["content"]
    with pytest.raises(ValueError, match="Unknown dimension 'consistency'"):
        judge_messages("consistency", "Q", "A", "P")
