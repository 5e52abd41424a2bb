"""What a bash offers with a script of ours, when TAB is pressed."""

import subprocess

# What readline does when TAB is pressed: words, split also at "=", and the function's answer.
DRIVER = r"""
eval "$SCRIPT"
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
spec=$(complete -p "$1") || exit 3
spec=${spec#*-F }
"${spec%% *}"
printf '%s\n' "${COMPREPLY[@]}"
"""


def offered(script, *words, cwd=None):
    done = subprocess.run(
        ["bash", "--norc", "-uc", DRIVER, "driver", *words],
        capture_output=True,
        text=True,
        cwd=cwd,
        env={"SCRIPT": script, "PATH": "/usr/bin:/bin"},
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return set(done.stdout.split("\n")) - {""}


def complete(script, line, cwd=None):
    """``line`` as it is typed; what is completed is its last word, which may be empty."""
    return offered(script, *line.replace("=", " = ").split(" "), cwd=cwd)
