"""CPU features: LLVM's table of them, asked for one core.

A name of a core stands for features, and a feature for others.  Only LLVM lists them, so nothing
here does.
"""

from __future__ import annotations

import functools


@functools.cache
def find_features(triple: str, cpu: str, features: str, names: tuple[str, ...]) -> frozenset[str]:
    """Return the features, out of some, that a core has.

    cpu, features: LLVM's name of the core, and features such as `+avx2,-fma` that change it.
    names: LLVM's names of features of the architecture, such as `avx2`.

    LLVM moves a function into its caller only if the caller's core has all that the function may
    use.  So each feature gets a function that may use it and is otherwise of this very core:

        define internal void @avx2() "target-cpu"="haswell" "target-features"="+avx2" { ... }

    The functions that are gone after the inliner's run are of features that the core has.
    """
    import llvmlite.binding as llvm

    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    lines = ["@kept = global i32 0"]
    for number, name in enumerate(names):
        more = ",".join(filter(None, [features, f"+{name}"]))
        lines += [
            f'define internal void @"{name}"() "target-cpu"="{cpu}" "target-features"="{more}" {{',
            f"store volatile i32 {number}, ptr @kept ret void }}",
        ]
    lines.append(f'define void @caller() "target-cpu"="{cpu}" "target-features"="{features}" {{')
    lines += [f'call void @"{name}"()' for name in names]
    lines.append("ret void }")
    module = llvm.parse_assembly("\n".join(lines), llvm.create_context())
    module.triple = triple
    machine = llvm.Target.from_triple(triple).create_target_machine(cpu=cpu, features=features)
    options = llvm.create_pipeline_tuning_options(speed_level=2)
    builder = llvm.create_pass_builder(machine, options)
    builder.getModulePassManager().run(module, builder)
    return frozenset(names) - {function.name for function in module.functions}
