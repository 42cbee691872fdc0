"""Kotlin: the classes of Java, and functions that make them Kotlin's; for Android, and for JVMs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from engine.tools.trimmed.bindings.java import JAVA
from engine.tools.trimmed.bindings.package import Api
from engine.tools.trimmed.targets import Platform

_ANDROID = {
    "kotlinPlugin": "\n  id 'org.jetbrains.kotlin.android'",
    "kotlinOptions": "\n  kotlinOptions {\n    jvmTarget = '1.8'\n  }",
}


_WORDS = "as fun in is object typealias typeof val var when"


def _fill(api: Api) -> Mapping[str, str]:
    return {**JAVA.fill(api), **_ANDROID}


def _list_templates(platform: Platform) -> Sequence[str]:
    own = ("java/jni.c", "java/src", "kotlin")
    return (*own, "android") if platform.system == "android" else own


KOTLIN = replace(
    JAVA,
    name="kotlin",
    title="Kotlin",
    fill=_fill,
    words=f"{JAVA.words} {_WORDS}",
    list_templates=_list_templates,
)
