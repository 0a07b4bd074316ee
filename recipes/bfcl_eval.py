"""Evaluates a model on BFCL multi-turn: what `rolloutkit run --config bfcl_eval` does, as a recipe.

    python recipes/bfcl_eval.py environment.limit=4
    python recipes/bfcl_eval.py engine=openai engine.base_url=http://127.0.0.1:8000/v1
    python recipes/bfcl_eval.py -m sampling.temperature=0,0.7   # a job for each value

Each job writes to Hydra's output directory. To make it yours, copy it and configs/bfcl_eval.yaml.
"""

import sys
from pathlib import Path

import hydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

import rolloutkit
from rolloutkit.cli.exit_codes import explained
from rolloutkit.config import make_parts, validate
from rolloutkit.output import RunDirectory
from rolloutkit.report.text import summary_text


@hydra.main(config_path="../configs", config_name="bfcl_eval", version_base=None)
def main(composed: DictConfig) -> None:
    directory = Path(HydraConfig.get().runtime.output_dir)
    with explained():
        config = validate(composed)
        parts = make_parts(config)
    with explained(), RunDirectory(directory, config=config.text) as output:
        rolloutkit.run(
            parts.tasks,
            engine=parts.engine,
            environment=parts.environment,
            renderer=parts.renderer,
            settings=config.settings(),
            recorder=output.recorder,
            sink=output.sink,
            history=parts.history,
            keep_history=output.keep_history,
            time=config.run.time,
        )
    print(summary_text(output.summary))
    print(f"written to {directory}")


if __name__ == "__main__":
    sys.path.remove(str(Path(__file__).parent))  # in there this file hides the package bfcl_eval
    main()
