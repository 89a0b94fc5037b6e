"""One run of ``segment_image`` to be measured: ``run_cytopave.py IMAGE OUTPUT TILE HALO``."""

from __future__ import annotations

import sys


def main(image: str, output: str, tile: int, halo: int) -> None:
    from cytopave.engine.segmenters import Threshold
    from cytopave.engine.tiling import Tiling
    from cytopave.flows import segment_image

    report = segment_image(
        image,
        segmenter=Threshold(),
        output=output,
        tiling=Tiling(tile=(tile, tile), halo=halo),
        workers=2,
        cluster="cpu",
    )
    print(report.model_dump_json())


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
