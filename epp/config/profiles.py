"""Scheduling profiles and their handler: references followed, defaults filled in."""

# mypy: disable-error-code="type-abstract"
# Roles are abstract classes; they are passed on here to ask for instances, never to be instantiated.

from epp.config import defaults
from epp.config.draft import Draft
from epp.config.errors import KeyPath, printable
from epp.config.schema import SchedulingProfile
from epp.scheduling.plugin import Filter, Picker, Plugin, ProfileHandler, Scorer
from epp.scheduling.scheduler import Profile


def resolve_profiles(draft: Draft) -> list[Profile]:
    """The profiles that can be made; what is wrong with the others is a problem of the draft."""
    given = draft.spec.scheduling_profiles or (defaults.default_profile(draft),)
    profiles: list[Profile] = []
    seen: set[str] = set()
    for index, spec in enumerate(given):
        path: KeyPath = ("schedulingProfiles", index)
        if not spec.name:
            draft.problem(path, "is missing a name", "add `name:`")
        elif spec.name in seen:
            message = f"has duplicate name '{printable(spec.name)}'"
            draft.problem((*path, "name"), message, "give each profile its own name")
        seen.add(spec.name)
        profile = _profile(draft, spec, path)
        if profile is not None:
            profiles.append(profile)
    return profiles


def _profile(draft: Draft, spec: SchedulingProfile, path: KeyPath) -> Profile | None:
    filters: list[Filter] = []
    scorers: list[tuple[Scorer, float]] = []
    pickers: list[Picker] = []
    for index, entry in enumerate(spec.plugins):
        at: KeyPath = (*path, "plugins", index)
        if not entry.plugin_ref:
            draft.problem(at, "is missing a 'pluginRef'", "add `pluginRef:` with the name of a plugin")
            continue
        plugin: Plugin | None = draft.find(entry.plugin_ref, Plugin, "a plugin", at)
        if isinstance(plugin, Filter):
            filters.append(plugin)
        if isinstance(plugin, Scorer):
            scorers.append((plugin, defaults.SCORER_WEIGHT if entry.weight is None else entry.weight))
        elif plugin is not None and entry.weight is not None:
            draft.notice((*at, "weight"), f"'{printable(plugin.name)}' is no scorer: its weight is ignored")
        if isinstance(plugin, Picker):
            pickers.append(plugin)
            if len(pickers) > 1:
                message = f"a profile has one picker; '{printable(pickers[0].name)}' is there already"
                draft.problem(at, message, "remove one of them")
        if plugin is not None and not isinstance(plugin, Filter | Scorer | Picker):
            name = printable(plugin.name)
            draft.notice(at, f"'{name}' is neither filter, scorer nor picker: in a profile it does nothing")
    picker = pickers[0] if pickers else defaults.default_picker(draft, path)
    return None if picker is None else Profile(spec.name, tuple(filters), tuple(scorers), picker)


def resolve_profile_handler(draft: Draft) -> ProfileHandler | None:
    """The one profile handler there is; `None` after a problem."""
    handlers = list(draft.of_role(ProfileHandler).values())
    several = len(draft.spec.scheduling_profiles) > 1
    if len(handlers) > 1:
        names = ", ".join(f"'{printable(h.name)}'" for h in handlers)
        message = f"multiple profile handlers found ({names}); only one is allowed"
        draft.problem(draft.declared_at[handlers[1].name], message, "remove the others")
        return None
    if not handlers:
        if not several:
            return defaults.default_profile_handler(draft)
        message = "no profile handler configured, and there are several profiles"
        draft.problem(("schedulingProfiles",), message, "declare a handler under `plugins`, or keep one profile")
        return None
    if several and handlers[0].plugin_type == defaults.PROFILE_HANDLER:
        message = f"{defaults.PROFILE_HANDLER} cannot support multiple scheduling profiles"
        draft.problem(draft.declared_at[handlers[0].name], message, "keep one profile, or use another handler")
    return handlers[0]
