"""XML 1.0 as a stream of tags, strict, from untrusted input, with bounded memory.

Here belongs what is true of every XML file: well-formedness, references, forbidden characters, nesting, input that is
refused before the root. The meaning of elements belongs to `junit/`. Tests compare the events with expat's, which is not
used because it buffers a comment or tag whole (198 MB and 11 s for 64 MB, here 0 MB and 0.1 s), stops at forbidden
characters and at references to them, and takes 2.0 s for 200,000 cases with their rows, against 0.5 s here.

Start tags that differ only in their values have one skeleton (`testcase name=`, ` time=`, ` /`). A skeleton is checked
strictly once and then recognised, which makes this fast.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from .characters import INVALID, Characters
from .report import ReadLimits
from .scanner import MAX_NAME, Damage, Scanner
from .text import FORBIDDEN

Values = list[str | None]

_DECLARATION = re.compile(
    r"""[ \t\n]+version[ \t\n]*=[ \t\n]*(?:"([A-Za-z0-9_.:-]+)"|'([A-Za-z0-9_.:-]+)')"""
    r"""(?:[ \t\n]+encoding[ \t\n]*=[ \t\n]*(?:"[A-Za-z][\w.-]*"|'[A-Za-z][\w.-]*'))?"""
    r"""(?:[ \t\n]+standalone[ \t\n]*=[ \t\n]*(?:"(?:yes|no)"|'(?:yes|no)'))?[ \t\n]*""",
    re.ASCII,
)
_DOCTYPE = re.compile(r"<!doctype[ \t\n]*([^ \t\n>\[]*)", re.IGNORECASE)
_HTML = re.compile(r"<(?:[^ \t\n<>/:]+:)?html(?=[ \t\n/>]|$)", re.IGNORECASE)
_IN_DOCTYPE = re.compile(r"[\"'\[\]>]|<!--|<\?")
_REFERENCE = re.compile(r"&(?:(lt|gt|amp|quot|apos)|#([0-9]+)|#x([0-9a-fA-F]+));|&")
_NOT_SIMPLE = re.compile(r"&(?!(?:lt|gt|amp|quot|apos);)")
_OPEN_REFERENCE = re.compile(r"&(?:#x?[0-9a-fA-F]{0,300}|[A-Za-z_:][\w:.-]{0,300})?\Z")
_SIMPLE = {"lt": "<", "gt": ">", "amp": "&", "quot": '"', "apos": "'"}
_RUN_CHARS = 1 << 15
_MAX_ATTRIBUTES = 10_000
_MAX_SKELETONS = 4096
_MAX_SKELETON = 1024


class Rejection(Damage):
    """The input is not a report; the rest of it does not matter."""


class Tag:
    """A start tag without its values, shared by all tags with the same skeleton.

    `places` has the index into a `Values` for each wanted attribute; for an absent one that of the last item, which is None.
    """

    __slots__ = ("attributes", "closed", "index", "name", "places", "qualified")

    def __init__(self, qualified: str, attributes: list[str], closed: bool, wanted: tuple[str, ...]) -> None:
        self.qualified, self.attributes, self.closed = qualified, tuple(attributes), closed
        self.name = qualified.rpartition(":")[2]
        self.index: dict[str, int] = {}
        for place, attribute in enumerate(attributes):
            prefix, _, local = attribute.rpartition(":")
            if not prefix:
                self.index[local] = 2 * place + 1
            elif prefix != "xmlns" and local not in attributes:
                self.index.setdefault(local, 2 * place + 1)
        self.places = tuple(self.index.get(name, -1) for name in wanted)

    def value(self, values: Values, attribute: str) -> str | None:
        """The value of an attribute, None where the tag has none of that local name."""
        return values[self.index.get(attribute, -1)]


class Markup(Scanner):
    """Reads a document: `root()` first, then `tags()`.

    Damage raises `Damage`; the tags before it lie wholly before the damage. Warnings are added to those of `characters`.
    """

    def __init__(self, characters: Characters, limits: ReadLimits, wanted: tuple[str, ...] = ()) -> None:
        super().__init__(characters)
        self._limits, self._wanted = limits, wanted
        self._skeletons: dict[tuple[str, ...], Tag] = {}
        self._size: int | None = None  # of the text that is open
        self._kept: list[str] | None = None

    def root(self) -> tuple[Tag, Values]:
        """The start tag of the root; raises `Rejection`."""
        doctype = False
        try:
            self._fill(6)
            if self._buffer.startswith(("<?xml ", "<?xml\t", "<?xml\n")):
                self._declaration()
            while True:
                self._spaces()
                if self._char() != "<":
                    raise Damage("malformed")
                self._fill(MAX_NAME)
                if self._buffer.startswith("<?", self._at):
                    self._instruction()
                elif self._buffer.startswith("<!--", self._at):
                    self._comment()
                elif match := _DOCTYPE.match(self._buffer, self._at):
                    if match[1].lower() == "html":
                        raise Rejection("html_document")
                    if doctype or not self._buffer.startswith("<!DOCTYPE", self._at):
                        raise Damage("malformed")
                    doctype = True
                    self._doctype()
                elif _HTML.match(self._buffer, self._at):
                    raise Rejection("html_document")
                elif doctype:
                    raise Rejection("dtd_forbidden")
                else:
                    self._at += 1
                    tag, values = self._start_tag()
                    self._open = [] if tag.closed else [tag.qualified]
                    return tag, values
        except Rejection:
            raise
        except Damage:
            raise Rejection("dtd_forbidden" if doctype else "unparseable") from None

    def tags(self) -> Iterator[tuple[Tag, Values] | None]:
        """Start tags with their values below the root, and None for each end tag; a closed tag has no end tag."""
        opened, depth = self._open, self._limits.depth
        while opened:
            buffer, at = self._buffer, self._at
            tag_at = buffer.find("<", at)
            if tag_at != at:
                if tag_at < 0:
                    self._text_without_end()
                    continue
                piece = buffer[at:tag_at]
                if "&" in piece or self._size is not None or self._special or "]]>" in piece:
                    self._text(piece)
                self._at = tag_at
            end = buffer.find(">", tag_at)
            kind = buffer[tag_at + 1 : tag_at + 2]
            if kind == "/":
                if buffer[tag_at + 2 : end] == opened[-1] and end >= 0:
                    self._at = end + 1
                else:
                    self._at = tag_at + 2
                    if self._name() != opened[-1]:
                        raise Damage("malformed")
                    self._spaces()
                    self._expect(">")
                opened.pop()
                yield None
            elif kind == "!":
                self._comment_or_cdata()
            elif kind == "?":
                self._instruction()
            elif not kind:
                self._more_or_cut()
            else:
                raw = buffer[tag_at + 1 : end] if end >= 0 else ""
                ordinary = self.ordinary_tag(raw) if raw else None
                if ordinary is not None:
                    tag, values = ordinary
                    self._at = end + 1
                else:
                    self._at = tag_at + 1
                    tag, values = self._start_tag()
                    if raw:
                        self._learn(raw, tag)
                if len(opened) >= depth:
                    raise Damage("nesting_too_deep")
                if not tag.closed:
                    opened.append(tag.qualified)
                yield tag, values
        self._epilogue()

    def run(self, pattern: re.Pattern[str], room: int) -> list[tuple[str, ...]]:
        """All successive matches of a pattern from here on, as its groups; call `take` with the number of characters used.

        Call it between two elements only. The pattern's last group must match all that its others do not. Nothing is
        matched where invalid bytes or forbidden characters may be, or where `room` more elements cannot be open.
        """
        if self._special or len(self._open) + room > self._limits.depth:
            return []
        found = pattern.findall(self._buffer, self._at, self._at + _RUN_CHARS)
        if found and found[-1][-1]:
            found.pop()
        return found

    def take(self, count: int) -> None:
        """Skip this many characters."""
        self._at += count

    def ordinary_tag(self, raw: str) -> tuple[Tag, Values] | None:
        """A start tag from the text between its brackets, None if its skeleton is not known; raises `Damage`."""
        parts: Values = raw.split('"')  # type: ignore[assignment]
        tag = self._skeletons.get(tuple(parts[::2]))  # type: ignore[arg-type]
        if tag is None or len(parts) % 2 == 0 or "<" in raw:
            return None
        parts[-1] = None
        if "&" in raw or not raw.isprintable() or len(raw) > self._limits.text:
            for place in range(1, len(parts), 2):
                parts[place] = self.value(parts[place] or "")
        return tag, parts

    def value(self, raw: str) -> str:
        """An attribute's value from the text between its quotes; raises `Damage`."""
        return self._cut(self._normal(raw))

    def unescaped(self, text: str) -> str:
        """The text of an element without children; raises `Damage`."""
        if "]]>" in text:
            raise Damage("malformed")
        return self._expanded(text)

    def open_text(self, keep: bool) -> None:
        """Count text from here on, and keep it if `keep` is set, until `close_text`."""
        self._size, self._kept = 0, [] if keep else None

    def close_text(self) -> str:
        """Return the text since `open_text`, cut at the limit."""
        kept, self._kept, self._size = self._kept or [], None, None
        return "".join(kept)

    def _declaration(self) -> None:
        self._at += len("<?xml")
        text = ""
        for piece in self._until("?>"):
            text += piece
            if len(text) > _MAX_SKELETON:
                raise Damage("malformed")
        match = _DECLARATION.fullmatch(text)
        if match is None:
            raise Damage("malformed")
        if (match[1] or match[2]) == "1.1":
            self.warnings.add("xml_1_1")
        if self._characters.leading_space:
            self.warnings.add("leading_whitespace")

    def _doctype(self) -> None:
        """Skip a document type declaration without interpreting it."""
        self._at += len("<!DOCTYPE")
        depth = 0
        while True:
            match = _IN_DOCTYPE.search(self._buffer, self._at)
            if match is None or match.end() + 3 > len(self._buffer):
                self._at = match.start() if match else max(self._at, len(self._buffer) - 3)
                if self._more():
                    continue
                if match is None:
                    raise Damage("truncated")
            self._at = match.end()
            mark = match[0]
            if mark == ">" and depth <= 0:
                return
            depth += (mark == "[") - (mark == "]")
            until = {"<!--": "-->", "<?": "?>", '"': '"', "'": "'"}.get(mark)
            if until:
                for _ in self._until(until):
                    pass

    def _epilogue(self) -> None:
        try:
            while True:
                self._spaces()
                self._fill(4)
                if self._at == len(self._buffer):
                    return
                if self._buffer.startswith("<!--", self._at):
                    self._comment()
                else:
                    self._instruction()
        except Damage:
            raise Damage("trailing_content") from None

    def _instruction(self) -> None:
        self._expect("<?")
        if self._name().lower() == "xml":
            raise Damage("malformed")
        if not self._spaces():
            self._expect("?>")
            return
        for piece in self._until("?>"):
            self._note(piece)

    def _comment(self) -> None:
        self._expect("<!--")
        for piece in self._until("--"):
            self._note(piece)
        self._expect(">")

    def _comment_or_cdata(self) -> None:
        self._fill(9)
        if not self._buffer.startswith("<![", self._at):
            self._comment()
            return
        self._expect("<![CDATA[")
        for piece in self._until("]]>"):
            self._keep(self._note(piece))

    def _start_tag(self) -> tuple[Tag, Values]:
        """Read a start tag strictly, from the character after its `<`."""
        qualified = self._name()
        attributes: dict[str, None] = {}
        values: Values = [None]
        while True:
            spaced = self._spaces()
            if (char := self._char()) in "/>":
                break
            name = self._name() if spaced else ""
            if not name or name in attributes:
                raise Damage("malformed")
            attributes[name] = None
            if len(attributes) > _MAX_ATTRIBUTES:
                raise Damage("x_too_many_attributes")
            self._spaces()
            self._expect("=")
            self._spaces()
            values += (self._quoted(), None)
        closed = char == "/"
        self._expect("/>" if closed else ">")
        return Tag(qualified, list(attributes), closed, self._wanted), values

    def _learn(self, raw: str, tag: Tag) -> None:
        """Remember the skeleton of a tag that was read strictly, if double quotes alone separate its values."""
        skeleton = tuple(raw.split('"')[::2])
        joined = "".join(skeleton)
        fits = len(self._skeletons) < _MAX_SKELETONS and len(joined) < _MAX_SKELETON
        if fits and raw.count('"') % 2 == 0 and "'" not in joined:
            self._skeletons[skeleton] = tag

    def _quoted(self) -> str:
        quote = self._char()
        if quote not in "\"'":
            raise Damage("malformed")
        self._at += 1
        kept: list[str] = []
        room = self._limits.text + 1
        rest = ""
        for piece in self._until(quote):
            if "<" in piece:
                raise Damage("malformed")
            piece = rest + piece
            cut = _reference_at_end(piece)
            rest = piece[cut:]
            kept.append(self._normal(piece[:cut])[:room])
            room -= len(kept[-1])
        if rest:
            raise Damage("malformed")
        return self._cut("".join(kept))

    def _normal(self, value: str) -> str:
        return self._expanded(self._note(value.replace("\n", " ").replace("\t", " ")))

    def _cut(self, value: str) -> str:
        if len(value) > self._limits.text:
            self.warnings.add("output_truncated")
            return value[: self._limits.text]
        return value

    def _text_without_end(self) -> None:
        """Take the text up to the end of the buffer, except what may continue in the next chunk, and read that."""
        piece = self._buffer[self._at :]
        cut = _reference_at_end(piece)
        if cut == len(piece):
            cut -= piece.endswith("]") + piece.endswith("]]")
        if cut:
            self._text(piece[:cut])
            self._at += cut
        self._more_or_cut()

    def _text(self, piece: str) -> None:
        if "]]>" in piece:
            raise Damage("malformed")
        piece = self._note(piece)
        if self._kept is not None or _NOT_SIMPLE.search(piece):
            piece = self._expanded(piece)
        self._keep(piece)

    def _keep(self, piece: str) -> None:
        if self._size is None:
            return
        if self._kept is not None and self._size < self._limits.text:
            self._kept.append(piece[: self._limits.text - self._size])
        self._size += len(piece)
        if self._size > self._limits.text:
            self.warnings.add("output_truncated")

    def _expanded(self, text: str) -> str:
        """Replace the references in a text."""
        return _REFERENCE.sub(self._character, text) if "&" in text else text

    def _character(self, reference: re.Match[str]) -> str:
        name, decimal, hexadecimal = reference.groups()
        if name:
            return _SIMPLE[name]
        if decimal is None and hexadecimal is None:
            raise Damage("malformed")
        digits = (decimal or hexadecimal).lstrip("0") or "0"
        number = int(digits, 10 if decimal else 16) if len(digits) < 8 else 0x110000
        if number > 0x10FFFF:
            self.warnings.add("invalid_char")
            return "\ufffd"
        if FORBIDDEN.match(chr(number)):
            self.warnings.add("invalid_char")
        return chr(number)

    def _note(self, piece: str) -> str:
        """Replace invalid bytes with U+FFFD; add warnings for these and for forbidden characters, which stay."""
        if self._special:
            if INVALID in piece:
                self.warnings.add("invalid_encoding")
                piece = piece.replace(INVALID, "\ufffd")
            if FORBIDDEN.search(piece):
                self.warnings.add("invalid_char")
        return piece


def _reference_at_end(piece: str) -> int:
    """The start of a reference that the end of the piece cuts, else the piece's length."""
    match = _OPEN_REFERENCE.search(piece, max(0, len(piece) - 310))
    return match.start() if match else len(piece)
