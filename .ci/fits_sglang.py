"""The core must go into an SGLang container without changing its torch and transformers, and without Jupyter: a pip dry run.

What SGLang 0.5.23 pins is read from the plan itself: with and without eaglelab the same versions must come out.
"""

import json
import subprocess
import sys

SGLANG = "sglang==0.5.23"


def plan(*requirements: str) -> dict[str, str]:
    """Package -> version that pip would install into an empty environment."""
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--quiet", "--ignore-installed", "--report", "-", *requirements]
    report = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    return {item["metadata"]["name"].lower(): item["metadata"]["version"] for item in report["install"]}


def main() -> None:
    alone, together = plan(SGLANG), plan(SGLANG, ".[sglang]")
    changed = {name: (version, together.get(name)) for name, version in alone.items() if together.get(name) != version}
    added = sorted(set(together) - set(alone))
    print(f"beside {SGLANG}: torch {together['torch']}, transformers {together['transformers']}; added: {', '.join(added)}")
    if changed or any("jupyter" in name or name == "papermill" for name in added):
        sys.exit(f"eaglelab changes an SGLang environment: {changed or added}")


if __name__ == "__main__":
    main()
