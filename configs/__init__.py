"""Set-ups, hardware profiles, model shapes and experiments, as YAML files beside this one."""

from pathlib import Path

HERE = Path(__file__).parent
