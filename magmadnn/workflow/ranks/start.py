"""The script that each rank of a workflow's job runs; its argument is the folder of the run."""

import sys

if __name__ == "__main__":
    sys.path.pop(0)  # this folder: users' modules may be named as files here are
    from magmadnn.workflow.ranks.job import main

    raise SystemExit(main())
