"""SIGHUP while a gateway starts: it ends no process, and none is lost."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

from ttamer.serve.hangups import hangups_blocked, hangups_kept, take_hangup

CHILD = """
import sys
from ttamer.serve.hangups import hangups_kept, take_hangup
sys.stdin.readline()
with hangups_kept():
    print(take_hangup(), take_hangup())
"""


def test_a_signal_is_kept_until_it_is_taken():
    before = signal.getsignal(signal.SIGHUP)
    with hangups_kept():
        assert not take_hangup()
        os.kill(os.getpid(), signal.SIGHUP)
        assert take_hangup()
        assert not take_hangup()
        os.kill(os.getpid(), signal.SIGHUP)
    assert signal.getsignal(signal.SIGHUP) == before
    assert not take_hangup()


def test_a_process_receives_the_signal_once_it_keeps_it():
    with hangups_blocked():
        child = subprocess.Popen(
            [sys.executable, "-c", CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
    child.send_signal(signal.SIGHUP)
    output, _ = child.communicate("go\n", timeout=60)
    assert (output, child.returncode) == ("True False\n", 0)
    assert signal.SIGHUP not in signal.pthread_sigmask(signal.SIG_BLOCK, set())


def test_another_thread_keeps_no_signals():
    entered = []

    def enter():
        with hangups_kept():
            entered.append(signal.getsignal(signal.SIGHUP))

    before = signal.getsignal(signal.SIGHUP)
    thread = threading.Thread(target=enter)
    thread.start()
    thread.join(30)
    assert entered == [before]
