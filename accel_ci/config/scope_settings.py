"""The settings of a suite's scope: the rules that say which tests run, which will one day, and what is expected of them.

Rules may also be in files of their own, which begin at `RuleFile`. What rules decide is in `accel_ci.scope`.
"""

from __future__ import annotations

import difflib
import re
from typing import Annotated, Any, Literal, get_args

from pydantic import AfterValidator, Field, model_validator

from accel_ci.config.section import Section
from accel_ci.config.values import Endpoint, path_below

Reason = Literal[
    "training", "other_device", "unsupported_dtype", "unsupported_op", "needs_more_cards", "not_implemented", "upstream_bug",
    "too_slow",
]  # fmt: skip
"""The reasons that are counted under the same name in every suite."""

Mode = Literal["must_pass", "xfail", "xfail_strict", "skip", "flaky_known"]
"""The outcome that a rule expects of an enabled test."""

_REASONS: tuple[str, ...] = get_args(Reason)
_OWN_FILE = "must be a path below the folder of the configuration file"


def _reason(value: str) -> str:
    """Refuse a misspelt reason of `Reason`, which would be counted by itself; other words are free."""
    if value not in _REASONS and re.fullmatch(r"[A-Za-z]+([_-][A-Za-z]+)*", value):
        close = difflib.get_close_matches(value.lower().replace("-", "_"), _REASONS, n=1, cutoff=0.8)
        if close:
            raise ValueError(f"did you mean {close[0]!r}? The reasons are {', '.join(_REASONS)}, or words of your own")
    return value


ReasonText = Annotated[str, AfterValidator(_reason)]
Patterns = Annotated[tuple[Annotated[str, Field(min_length=1)], ...], Field(min_length=1)]
"""Alternatives, of which one must match: `*` and `?` are wildcards, everything else is literal."""

RulesPath = Annotated[str, AfterValidator(path_below(_OWN_FILE))]


class Criteria(Section):
    """The tests for which all criteria hold; each holds when one of its patterns matches.

    `tests` are node ids, `files` and the others what pytest's and PyTorch's own objects say at collection: `classes` and
    `methods` with or without the suffixes of device and dtype, `ops` by OpInfo, `modules` by ModuleInfo, `markers` of pytest
    (and `training` for a module's test in training mode), `decorators` such as `onlyCUDA`. `name` is shown in reports.
    """

    tests: Patterns | None = None
    files: Patterns | None = None
    classes: Patterns | None = None
    methods: Patterns | None = None
    ops: Patterns | None = None
    dtypes: Patterns | None = None
    modules: Patterns | None = None
    markers: Patterns | None = None
    decorators: Patterns | None = None
    name: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _some_criterion(cls, value: Any) -> Any:
        if isinstance(value, dict) and value.keys() <= cls.model_fields.keys() - set(CRITERIA):
            raise ValueError(f"needs a criterion: {', '.join(CRITERIA)}")
        return value

    @property
    def criteria(self) -> dict[str, tuple[str, ...]]:
        """The patterns by criterion."""
        return {name: patterns for name in CRITERIA if (patterns := getattr(self, name)) is not None}


CRITERIA = tuple(name for name in Criteria.model_fields if name != "name")


class EnabledTests(Criteria):
    """Tests that run; text alone is a pattern of node ids."""

    @model_validator(mode="before")
    @classmethod
    def _text_is_a_pattern(cls, value: Any) -> Any:
        return {"tests": [value]} if isinstance(value, str) and value else value


class _WithReason(Section):
    """A reason, words about it, and the address of an issue."""

    reason: ReasonText
    text: str | None = None
    issue: Endpoint | None = None

    @property
    def words(self) -> str:
        """The reason with all that is said about it."""
        return ": ".join(filter(None, (self.reason, self.text))) + (f" ({self.issue})" if self.issue else "")


class ScopeRule(_WithReason, Criteria):
    """Tests that are out of scope or not enabled yet, and why."""


class ModeRule(_WithReason, Criteria):
    """The outcome that is expected of tests that run."""

    mode: Mode
    reason: ReasonText = "expected by a rule"


class ToleranceRule(_WithReason):
    """The difference from the right result that PyTorch's tests of operators allow: `atol` + `rtol` · |result|.

    It is in place of PyTorch's own for the operator, if any. It widens the default of a dtype, and cannot narrow that.
    """

    ops: Patterns
    dtypes: Patterns | None = None
    atol: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    rtol: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    name: str | None = None

    @property
    def criteria(self) -> dict[str, tuple[str, ...]]:
        """The patterns by criterion."""
        return {"ops": self.ops} if self.dtypes is None else {"ops": self.ops, "dtypes": self.dtypes}


class RuleFile(Section):
    """The rules of a file beside the configuration file."""

    exclude: tuple[ScopeRule, ...] = ()
    not_enabled: tuple[ScopeRule, ...] = ()
    enabled: tuple[EnabledTests, ...] | None = None
    modes: tuple[ModeRule, ...] = ()


class EnabledFile(Section):
    """The file of the tests that run, which `accel-ci ramp propose --apply` extends."""

    enabled: tuple[EnabledTests, ...]


class Scope(RuleFile):
    """The collected tests that belong to a suite: included by a pattern and excluded by no rule.

    Of those in scope, all run but those that a rule in `not_enabled` names and, if `enabled` or `enabled_file` is there,
    those that it does not name. In each list the first rule that matches decides. `modes` say what is expected of those that
    run. `rule_files` have more rules; these come after those that are here. `tolerances` are for suites of PyTorch's tests.
    """

    include: tuple[str, ...] = ("*",)
    enabled_file: RulesPath | None = None
    rule_files: tuple[RulesPath, ...] = ()
    tolerances: tuple[ToleranceRule, ...] = ()
