"""The rows of the paper's two tables of results, to stand beside ours.

Facts as published; how they were averaged is not.
"""

from __future__ import annotations

# Table 2, accuracy: model, then the columns of `measures.TABLE2` and "Overall".
TABLE2: tuple[tuple[str, tuple[float, ...]], ...] = (
    ("Qwen2.5-VL-3B, zero-shot", (0.081, 0.253, 0.251, 0.093, 0.159, 0.158)),
    ("Qwen2.5-VL-7B, zero-shot", (0.642, 0.309, 0.348, 0.347, 0.469, 0.470)),
    ("o1, zero-shot", (0.479, 0.553, 0.353, 0.332, 0.476, 0.477)),
    ("Qwen2.5-VL-3B, instruction", (0.092, 0.149, 0.253, 0.205, 0.146, 0.146)),
    ("Qwen2.5-VL-7B, instruction", (0.629, 0.466, 0.342, 0.297, 0.503, 0.504)),
    ("o1, instruction", (0.635, 0.579, 0.345, 0.391, 0.567, 0.568)),
    ("Qwen2.5-VL-7B, true region given", (0.697, 0.549, 0.338, 0.166, 0.563, 0.556)),
    ("Qwen2.5-VL-3B, SFT without reasoning", (0.706, 0.602, 0.345, 0.387, 0.616, 0.613)),
    ("Med3DVLM, SFT without reasoning", (0.670, 0.578, 0.330, 0.346, 0.600, 0.596)),
    ("Qwen2.5-VL-3B, SFT with reasoning", (0.667, 0.600, 0.342, 0.340, 0.590, 0.588)),
    ("Med3DVLM, SFT with reasoning", (0.671, 0.579, 0.333, 0.343, 0.605, 0.581)),
)
# Table 3, IoU: model, then the columns of `measures.TABLE3`.
TABLE3: tuple[tuple[str, tuple[float, ...]], ...] = (
    ("Qwen2.5-VL-3B", (0.293, 0.275, 0.322, 0.174, 0.299, 0.305, 0.519)),
    ("Med3DVLM", (0.298, 0.314, 0.359, 0.197, 0.319, 0.384, 0.470)),
)
NOTE = (
    "Published rows are on the real test split and under an averaging that the paper does not state; no "
    "fixed weighting of its columns gives its "
    "Overall. They are here for orientation: a row of ours next to one of them is no like-for-like "
    "comparison."
)
