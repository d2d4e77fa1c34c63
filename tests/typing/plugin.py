"""A plugin of mypy: the parameters of `replaced` (client_lib.spec) are the fields of the model."""

from collections.abc import Callable

from mypy.expandtype import expand_type_by_instance
from mypy.maptype import map_instance_to_supertype
from mypy.nodes import ARG_NAMED_OPT, ARG_POS, Var
from mypy.plugin import FunctionSigContext, Plugin
from mypy.types import FunctionLike, Instance, Type, TypeVarType, get_proper_type

REPLACED = "client_lib.spec.replace.replaced"
MODEL = "pydantic.main.BaseModel"
METADATA = "pydantic-mypy-metadata"


class Replaced(Plugin):
    def get_function_signature_hook(
        self, fullname: str
    ) -> Callable[[FunctionSigContext], FunctionLike] | None:
        return _signature if fullname == REPLACED else None


def _signature(context: FunctionSigContext) -> FunctionLike:
    given = context.args[0]
    if not given:
        return context.default_signature
    model = get_proper_type(context.api.get_expression_type(given[0]))
    bound = get_proper_type(model.upper_bound) if isinstance(model, TypeVarType) else model
    if not isinstance(bound, Instance):
        return context.default_signature
    fields = _fields(bound)
    return context.default_signature.copy_modified(
        arg_kinds=[ARG_POS, *[ARG_NAMED_OPT] * len(fields)],
        arg_names=[None, *fields],
        arg_types=[model, *fields.values()],
        ret_type=model,
        variables=[],
    )


def _fields(model: Instance) -> dict[str, Type]:
    """The types of the fields by name, also of the fields that the model inherits."""
    found: dict[str, Type] = {}
    for base in reversed(model.type.mro):
        if base.fullname == MODEL or not base.has_base(MODEL):
            continue
        instance = map_instance_to_supertype(model, base)
        for name, symbol in base.names.items():
            var = symbol.node
            if not isinstance(var, Var) or var.is_classvar or var.type is None:
                continue
            if not name.startswith(("_", "model_")):
                found[name] = expand_type_by_instance(var.type, instance)
    return found


def plugin(_version: str) -> type[Plugin]:
    return Replaced
