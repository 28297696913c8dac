"""Under which name and on which terms a release goes out: words that the card, Croissant and their checks
hold in common. They are facts, not results: who changes one, changes it here."""

from __future__ import annotations

from typing import Any

NAME = "3DReasonKnee"
REPO = "rajpurkarlab/3DReasonKnee"
REPO_URL = f"https://huggingface.co/datasets/{REPO}"
OAI_URL = "https://nda.nih.gov/oai"
OPEN_LICENCE_URL = "https://creativecommons.org/licenses/by/4.0/"
GATE = (
    "The images and what is computed from them come from the Osteoarthritis Initiative (OAI) and may not be "
    "redistributed. By asking for access you "
    "confirm that you have accepted OAI's data use terms and will not share the images or try to identify "
    "participants."
)
RESTRICTED: dict[str, Any] = {
    "license": "other",
    "license_name": "oai-data-use-terms",
    "license_link": OAI_URL,
    "extra_gated_prompt": GATE,
}
OPEN: dict[str, Any] = {"license": "cc-by-4.0"}
# What the Hub lists a release by.
LISTED: dict[str, Any] = {
    "language": ["en"],
    "task_categories": ["visual-question-answering", "image-text-to-text"],
    "tags": ["medical", "mri", "knee", "osteoarthritis", "moaks", "3d", "grounding", "reasoning"],
    "source_datasets": ["extended|other-oai"],
}
# The only addresses in the texts of a release: the project's own, its terms, the vocabularies of its files.
OWN_URLS = (
    REPO_URL,
    "https://huggingface.co/rajpurkarlab",
    "https://arxiv.org/abs/2510.20967",
    OAI_URL,
    OPEN_LICENCE_URL,
    "http://mlcommons.org/croissant/",
    "https://schema.org/",
    "http://purl.org/dc/terms/",
    "https://json-schema.org/draft/2020-12/schema",
)
