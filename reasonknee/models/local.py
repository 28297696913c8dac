"""A local Qwen2.5-VL or Qwen3-VL by transformers: many questions on one volume, read once.

    model = Local.load("Qwen/Qwen2.5-VL-3B-Instruct", adapter=None, dtype="bfloat16")
    showing = model.fitted(view.show(volume, "right"))
    for reply in model.replies(showing, [prompts.ask(q, "zero_shot", showing.told) for q in questions]): ...

The questions of a showing share their tokens up to the first word in which they differ. These are read once;
then the questions go on from there in batches, each at the positions that it would have by itself. So greedy
answers are those of one question at a time.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reasonknee.errors import DataError, UsageError, shown
from reasonknee.models import qwen
from reasonknee.models.grammar import Grammar
from reasonknee.models.requests import Parameters, Reply
from reasonknee.models.views import Outline, Showing, to_size
from reasonknee.questions import Question
from reasonknee.questions.prompts import SYSTEM
from reasonknee.system.files import write_text

if TYPE_CHECKING:
    import torch

_OBJECT = 400  # tokens that an object by its schema may take
DTYPES = ("auto", "bfloat16", "float16", "float32")


def sized(family: qwen.Family, outline: Outline) -> Outline:
    """The outline in the size in which the model sees the frames, so that pixels are its pixels."""
    video = outline.view.kind == "video"
    frame = (
        family.video_size(len(outline.slices), outline.frame) if video else family.image_size(outline.frame)
    )
    return replace(outline, frame=frame)


def fitted(family: qwen.Family, showing: Showing) -> Showing:
    """The frames themselves in that size."""
    if showing.view.kind == "video":
        return showing.fitted(qwen.resized(showing.frames, sized(family, showing.outline).frame))
    stacks = [to_size(s, family.image_size(s.shape[1:])) for s in (showing.frames, *showing.others)]
    return showing.fitted(stacks[0], *stacks[1:])


def packed(family: qwen.Family, showing: Showing) -> qwen.Packed:
    if showing.view.kind == "video":
        depth = showing.outline.part.shape[0]
        return qwen.pack_video(family, showing.frames, showing.told.slices, depth)
    return qwen.pack_images(family, showing.own, showing.told.slices)


class Local:
    """A model with its tokenizer, on one device."""

    system = SYSTEM  # who the model is told to be

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        family: qwen.Family,
        *,
        rule: str = "after_max",
        batch: int = 8,
        about: dict[str, Any] | None = None,
    ) -> None:
        from transformers import GenerationConfig

        self.model, self.tokenizer, self.family = model.eval(), tokenizer, family
        self.rule, self.batch, self.about = rule, batch, about or {}
        self._grammar: Grammar | None = None
        own = model.generation_config
        ends = own.eos_token_id if own.eos_token_id is not None else tokenizer.eos_token_id
        self.ends = tuple(ends) if isinstance(ends, list | tuple) else (ends,)
        self.pad = next(p for p in (own.pad_token_id, tokenizer.pad_token_id, self.ends[0]) if p is not None)
        # a checkpoint's own penalties would see a question without its prefix: another answer with a cache
        model.generation_config = GenerationConfig(eos_token_id=list(self.ends), pad_token_id=self.pad)

    @classmethod
    def load(
        cls,
        name: str,
        *,
        adapter: str | None = None,
        dtype: str = "auto",
        four_bit: bool = False,
        device: str | None = None,
        revision: str | None = None,
        rule: str = "after_max",
        batch: int = 8,
    ) -> Local:
        """A checkpoint folder or a model on the Hub, perhaps with an adapter that was trained for it."""
        torch = _needed()
        from safetensors import SafetensorError
        from transformers import AutoModelForImageTextToText, AutoTokenizer, BitsAndBytesConfig

        if dtype not in DTYPES:
            raise UsageError("N020", f"unknown dtype {dtype!r}", f"choose one of {', '.join(DTYPES)}")
        check_name(name)
        device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        options: dict[str, Any] = {"revision": revision, "dtype": dtype, "device_map": device}
        if four_bit:
            options["quantization_config"] = BitsAndBytesConfig(
                load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype="bfloat16"
            )
        try:
            config, family = load_family(name, revision)
            tokenizer = AutoTokenizer.from_pretrained(name, revision=revision)
            model = AutoModelForImageTextToText.from_pretrained(name, **options)
            if adapter:
                from peft import PeftModel

                check_name(adapter)
                model = PeftModel.from_pretrained(model, adapter)
        except (OSError, ValueError, ImportError, RuntimeError, SafetensorError) as error:
            raise _unloaded(name, error) from None
        if not tokenizer.chat_template:
            hint = (
                "take the instruction-tuned checkpoint, or put its chat_template.jinja beside the tokenizer"
            )
            raise DataError("N089", f"the tokenizer of {shown(name)} has no chat template", hint)
        about = about_of(name, config, adapter, str(model.dtype).removeprefix("torch."), four_bit, rule)
        return cls(model, tokenizer, family, rule=rule, batch=batch, about=about)

    # --- what it sees ---------------------------------------------------------------------------------------

    def sized(self, outline: Outline) -> Outline:
        return sized(self.family, outline)

    def fitted(self, showing: Showing) -> Showing:
        return fitted(self.family, showing)

    def packed(self, showing: Showing) -> qwen.Packed:
        return packed(self.family, showing)

    def packs(self, showing: Showing | None) -> tuple[qwen.Packed, ...]:
        """What is shown before a question: the volume, and its region where that follows."""
        if showing is None:
            return ()
        return (self.packed(showing), *self.packs(showing.region))

    def tokens(self, text: str, shown: qwen.Shown) -> list[int]:
        """The chat: the volume first, then the question."""
        content: list[dict[str, str]] = []
        for packed in qwen.packs_of(shown):
            content += (
                [{"type": "video"}] if packed.kind == "video" else [{"type": "image"}] * len(packed.grids)
            )
        messages = [
            {"role": "system", "content": [{"type": "text", "text": self.system}]},
            {"role": "user", "content": [*content, {"type": "text", "text": text}]},
        ]
        written = self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        if content:
            written = qwen.expanded(self.family, written, shown)
        ids: list[int] = self.tokenizer(written, add_special_tokens=False)["input_ids"]
        return ids

    def inputs(self, shown: qwen.Shown) -> dict[str, Any]:
        """What the model takes beside tokens and positions."""
        device = self.model.device
        given = qwen.tensors(qwen.packs_of(shown))
        return {
            k: v.to(device, self.model.dtype if v.is_floating_point() else None) for k, v in given.items()
        }

    def kinds(self, ids: Sequence[int]) -> torch.Tensor:
        import torch

        config = self.model.config
        return qwen.token_kinds(torch.tensor(ids), config.video_token_id, config.image_token_id)

    def positions(self, ids: Sequence[int], shown: qwen.Shown) -> torch.Tensor:
        return qwen.positions(self.family, self.kinds(ids).tolist(), shown, self.rule)

    # --- answers --------------------------------------------------------------------------------------------

    def replies(
        self,
        showing: Showing | None,
        texts: Sequence[str],
        parameters: Parameters | None = None,
        questions: Sequence[Question] | None = None,
    ) -> Iterator[Reply]:
        """The answers to questions on one showing, in their order; None shows nothing. With `questions` each
        answer ends with an object that follows the schema of its own."""
        import torch

        parameters = parameters or Parameters()
        start = time.perf_counter()
        packed = self.packs(showing)
        asked = [self.tokens(text, packed) for text in texts]
        room = self.model.config.text_config.max_position_embeddings - parameters.max_tokens
        longest = max(map(len, asked))
        if longest > room:
            raise DataError(
                "N022",
                f"{longest:,} tokens and {parameters.max_tokens:,} for the answer are more than the model's "
                f"{room + parameters.max_tokens:,}",
                "show fewer slices or smaller frames",
            )
        shared = _shared(asked)
        with torch.inference_mode():
            cache, after = self._prefix(asked[0][:shared], packed)
            torch.manual_seed(parameters.seed)
            for first in range(0, len(asked), self.batch):
                batch = asked[first : first + self.batch]
                made = self._generated([ids[shared:] for ids in batch], cache, after, parameters)
                if questions is not None:
                    made = [
                        self._with_object(ids[shared:], words, questions[first + i], cache, after, parameters)
                        for i, (ids, words) in enumerate(zip(batch, made, strict=True))
                    ]
                now = time.perf_counter()
                for i, (ids, words) in enumerate(zip(batch, made, strict=True)):
                    new = first + i == 0
                    yield self._reply(ids, words, 0 if new else shared, (now - start) / len(batch))
                start = now

    def _prefix(self, ids: list[int], packed: qwen.Shown) -> tuple[Any, int]:
        """Keys and values of the tokens that all questions share, and the position after them."""
        import torch

        device = self.model.device
        places = self.positions(ids, packed)
        output = self.model(
            input_ids=torch.tensor([ids], device=device),
            mm_token_type_ids=self.kinds(ids)[None].to(device),
            position_ids=places.to(device),
            use_cache=True,
            logits_to_keep=1,
            **self.inputs(packed),
        )
        return output.past_key_values, int(places[0, 0, -1]) + 1

    def _with_object(
        self, asked: list[int], words: list[int], question: Question, cache: Any, after: int, p: Parameters
    ) -> list[int]:
        """The words, a new line, and an object by the question's schema."""
        self._grammar = self._grammar or Grammar(self.tokenizer, self.model.config.text_config.vocab_size)
        end = next((i for i, token in enumerate(words) if token in self.ends), len(words))
        said: list[int] = words[:end] + self.tokenizer("\n", add_special_tokens=False)["input_ids"]
        limited = replace(p, max_tokens=_OBJECT)
        processors = [self._grammar.processor(question)]
        (made,) = self._generated([asked + said], cache, after, limited, logits_processor=processors)
        return said + made

    def _generated(
        self, questions: list[list[int]], cache: Any, after: int, p: Parameters, **more: Any
    ) -> list[list[int]]:
        """What follows each question, after the shared prefix."""
        import torch

        from reasonknee.models.keys_values import for_each

        device, count, most = self.model.device, len(questions), max(map(len, questions))
        shared = cache.get_seq_length()
        ids = torch.full((count, most), self.pad)
        mask = torch.zeros((count, shared + most), dtype=torch.long)
        mask[:, :shared] = 1
        for row, question in enumerate(questions):
            ids[row, most - len(question) :] = torch.tensor(question)
            mask[row, shared + most - len(question) :] = 1
        places = (mask[:, shared:].cumsum(-1) - 1).clamp(min=0) + after
        drawn = {"do_sample": True, "temperature": p.temperature} if p.temperature else {"do_sample": False}
        made = self.model.generate(
            input_ids=ids.to(device),
            attention_mask=mask.to(device),
            position_ids=places.expand(3, -1, -1).contiguous().to(device),
            past_key_values=for_each(cache, count, most + p.max_tokens),
            max_new_tokens=p.max_tokens,
            **drawn,
            **more,
        )
        return [row.tolist() for row in made[:, most:]]

    def _reply(self, ids: list[int], words: list[int], cached: int, seconds: float) -> Reply:
        end = next((i for i, token in enumerate(words) if token in self.ends), None)
        words = words if end is None else words[:end]
        text = self.tokenizer.decode(words, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        finish = "length" if end is None else "stop"
        return Reply(text, finish, len(ids), cached, len(words) + (end is not None), seconds)


class Checkpoint:
    """A checkpoint that loads its weights when the first question comes: a plan, an estimate and a dry run
    need none."""

    system = SYSTEM

    def __init__(self, name: str, **options: Any) -> None:
        _needed()
        check_name(name)
        self.name, self.options = name, options
        self._local: Local | None = None
        revision = options.get("revision")
        try:
            config, self.family = load_family(name, revision)
        except (OSError, ValueError) as error:
            raise _unloaded(name, error) from None
        dtype, four_bit = options.get("dtype", "auto"), options.get("four_bit", False)
        rule = options.get("rule", "after_max")
        self.about = about_of(name, config, options.get("adapter"), dtype, four_bit, rule)

    def sized(self, outline: Outline) -> Outline:
        return sized(self.family, outline)

    def fitted(self, showing: Showing) -> Showing:
        return fitted(self.family, showing)

    def replies(
        self,
        showing: Showing | None,
        texts: Sequence[str],
        parameters: Parameters,
        questions: Sequence[Question] | None = None,
    ) -> Iterator[Reply]:
        self._local = self._local or Local.load(self.name, **self.options)
        self._local.system = self.system
        yield from self._local.replies(showing, texts, parameters, questions)


def about_of(
    name: str, config: Any, adapter: str | None, dtype: str, four_bit: bool, rule: str
) -> dict[str, Any]:
    """What makes a model this one, for stamps and keys."""
    return {
        "model": name,
        "revision": getattr(config, "_commit_hash", None),
        "adapter": adapter,
        "dtype": dtype,
        "four_bit": four_bit,
        "positions": rule,
    }


def load_family(name: str, revision: str | None) -> tuple[Any, qwen.Family]:
    """A checkpoint's configuration, and how it sees; no weights."""
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(name, revision=revision)
    return config, qwen.family_of(config, _processor_file(name, revision))


def _unloaded(name: str, error: Exception) -> DataError:
    told = f"{shown(name)} cannot be loaded: {shown(' '.join(str(error).split()), 200)}"
    return DataError(
        "N021", told, "a folder with a whole checkpoint is wanted, or a name and a way to the Hub"
    )


def _shared(asked: Sequence[list[int]]) -> int:
    """How many tokens all begin with; each keeps one of its own, since an answer follows a token."""
    least, greatest = min(asked), max(asked)  # what these two share, all between them do
    same = (i for i, (a, b) in enumerate(zip(least, greatest, strict=False)) if a != b)
    return min(next(same, len(least)), min(map(len, asked)) - 1)


def _needed() -> Any:
    try:
        import torch
        import transformers  # noqa: F401
    except ImportError:
        raise UsageError(
            "N023", "a local model needs torch and transformers", "pip install 'reasonknee[torch,models]'"
        ) from None
    return torch


def check_name(name: str) -> None:
    """A path that is none would be looked for on the Hub, for minutes."""
    path = Path(name)
    if not path.is_dir() and (path.is_absolute() or name.startswith(".") or name.count("/") != 1):
        raise DataError("N024", f"no model at {shown(name)}", "a checkpoint folder, or owner/name on the Hub")


_PROCESSOR_FILES = (
    ("image_processor", "preprocessor_config.json"),
    ("video_processor", "video_preprocessor_config.json"),
    ("", "processor_config.json"),
)


def _processor_files(name: str, revision: str | None) -> Iterator[tuple[str, Path]]:
    """Those that a checkpoint has."""
    from transformers.utils import cached_file

    for part, file in _PROCESSOR_FILES:
        found = cached_file(name, file, revision=revision, _raise_exceptions_for_missing_entries=False)
        if found is not None:
            yield part, Path(found)


def _processor_file(name: str, revision: str | None) -> dict[str, Any]:
    """What the checkpoint says of its pictures, whichever file holds it."""
    said: dict[str, Any] = {}
    for part, path in _processor_files(name, revision):
        try:
            fields = json.loads(path.read_text(encoding="utf-8"))
        except ValueError:
            raise DataError(
                "N021", f"{path.name} of {shown(name)} is no JSON", "fetch the model again"
            ) from None
        said |= fields if not part else {part: fields}
    return said


def copy_processor(name: str, folder: Path, revision: str | None = None) -> None:
    """How a checkpoint sees, into the folder of a model that was made of it."""
    for _, path in _processor_files(name, revision):
        write_text(folder / path.name, path.read_text(encoding="utf-8"))
