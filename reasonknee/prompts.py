"""Every word that is sent to a model. Two wordings of each question, one answer form for all."""

from __future__ import annotations

from reasonknee.questions import Attribute, Question

WORDINGS = ("zero_shot", "instruction")

SYSTEM = "You are a musculoskeletal radiologist who reads 3D knee MRI (sagittal DESS) and grades it by MOAKS."


def zero_shot(question: Question) -> str:
    """The question and the wanted output; nothing about looks or criteria, so that a zero-shot run stays one."""
    grades = "; ".join(f"{a.title} ({_range(a)})" for a in question.attributes)
    return (
        f"Is there {question.lesion.indefinite} in the {question.region.title} of this knee? First locate the region with a 3D box, then assess it "
        f"there, then grade it by MOAKS: {grades}.\n\n{answer_form(question)}"
    )


def instruction(question: Question) -> str:
    """The same task, with what the lesion looks like on DESS and what each grade means."""
    lesion = question.lesion
    lines = [
        f"Task: grade {lesion.indefinite} in the {question.region.title} of this knee by MOAKS.",
        f"1. Locate the {question.region.title} and enclose it in a 3D box.",
        f"2. Assess {lesion.search}. On DESS look for {lesion.appearance}.",
        f"3. Grade what you see. Note that {lesion.rule}.",
    ]
    for a in question.attributes:
        criteria = "; ".join(f"{g} = {meaning}" for g, meaning in enumerate(a.space.meanings))
        lines.append(f"   - {a.id} ({a.title}{', a class without order' if a.space.scale == 'nominal' else ''}): {criteria}.")
    return "\n".join(lines) + "\n\n" + answer_form(question)


def answer_form(question: Question) -> str:
    """What the answer must look like: the one canonical form, for all questions."""
    grades = ", ".join(f'"{a.id}": <{_range(a)}>' for a in question.attributes)
    return (
        "Write your reasoning step by step, then end with one JSON object:\n"
        f'{{"box": {{"z0": <int>, "z1": <int>, "y0": <int>, "y1": <int>, "x0": <int>, "x1": <int>}}, "grades": {{{grades}}}}}\n'
        "The box is in voxels of the full volume: z counts sagittal slices, y rows, x columns; it starts at z0, y0, x0 and ends before z1, y1, x1. "
        'If the region cannot be found, "box" is null.'
    )


def wordings(question: Question) -> dict[str, str]:
    return {"zero_shot": zero_shot(question), "instruction": instruction(question)}


def _range(attribute: Attribute) -> str:
    grades = attribute.space.grades
    return f"{grades[0]} or {grades[-1]}" if len(grades) == 2 else f"{grades[0]} to {grades[-1]}"
