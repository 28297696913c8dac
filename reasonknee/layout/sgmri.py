"""The fields of SGMRI-VQA's records and rows, as `records` has those of the quintuples."""

from __future__ import annotations

from reasonknee.layout.records import BINARY, INT8, INT32, TEXT, Field, Repeated, Struct

ANATOMIES = ("knee", "brain")
SPLITS = ("train", "test")  # test is fastMRI's val
LEVELS = ("slice", "volume")
TASKS = {
    "slice": ("detection", "localization", "classification", "diagnosis", "captioning"),
    "volume": ("detection", "localization", "counting", "classification", "captioning"),
}
KINDS = ("yes_no", "count", "single_choice", "multiple_choice", "text")
ALL_TASKS = tuple(dict.fromkeys(task for tasks in TASKS.values() for task in tasks))

_PIXEL = {"y0": "First row", "y1": "One past the last row", "x0": "First column", "x1": "One past the last"}
FRAME_BOX = Struct(
    (
        Field("frame", INT32, "Array index of the frame, from 0"),
        *(Field(name, INT32, f"{doc}, pixels of the stored image") for name, doc in _PIXEL.items()),
    )
)
QA = (
    Field("id", TEXT, "Stable id: anatomy, split, level, file, position and volume"),
    Field("anatomy", TEXT, "What was scanned", choices=ANATOMIES),
    Field("split", TEXT, "Split; test is fastMRI's val", choices=SPLITS),
    Field("level", TEXT, "Whether the question is about one slice or the whole volume", choices=LEVELS),
    Field("task", TEXT, "What is asked for", choices=ALL_TASKS),
    Field("source", TEXT, "Where the question comes from", choices=("published", "derived")),
    Field("volume_id", TEXT, "fastMRI's file name without its ending"),
    Field("patient", TEXT, "fastMRI's patient, where an image file told it", nullable=True),
    Field("sequence", TEXT, "Kind of scan", nullable=True),
    Field("frame", INT32, "The frame of a slice's question: array index, from 0", nullable=True),
    Field("first_frame", INT32, "The number that texts give to array index 0"),
    Field("question", TEXT, "The question"),
    Field(
        "choices",
        Repeated(Struct((Field("letter", TEXT, "Letter"), Field("text", TEXT, "What it stands for")))),
        "What can be chosen; empty where nothing is",
    ),
    Field(
        "answer",
        Struct(
            (
                Field("kind", TEXT, "How it is compared", choices=KINDS),
                Field("text", TEXT, "The answer in words"),
                Field("yes", INT8, "1 for yes, 0 for no", nullable=True),
                Field("count", INT32, "A count", nullable=True),
                Field("unit", TEXT, "What is counted", nullable=True),
                Field("letters", Repeated(TEXT), "The right choices"),
            )
        ),
        "The right answer",
    ),
    Field(
        "findings",
        Repeated(
            Struct((Field("label", TEXT, "Finding"), Field("boxes", Repeated(FRAME_BOX), "Where it is seen")))
        ),
        "What the question is about and where it is seen",
    ),
    Field("reasoning", Repeated(TEXT), "Reasoning steps. They state the answer"),
)
PIXELS = Struct(
    (
        Field("frames", INT32, "Frames"),
        Field("height", INT32, "Rows"),
        Field("width", INT32, "Columns"),
        Field("bytes", BINARY, "uint8 (frames, rows, columns), C order"),
    )
)
CONFIGS: dict[str, tuple[Field, ...]] = {
    "qa": QA,
    "slices": (*QA, Field("image", PIXELS, "The frame of the question")),
    "volumes": (
        Field("volume_id", TEXT, "fastMRI's file name without its ending"),
        Field("anatomy", TEXT, "What was scanned", choices=ANATOMIES),
        Field("patient", TEXT, "fastMRI's patient, where an image file told it", nullable=True),
        Field("image", PIXELS, "All frames"),
        Field("questions", Repeated(Struct(QA)), "The questions on this volume"),
    ),
}
