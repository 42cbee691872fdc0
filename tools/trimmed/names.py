"""Names of builds, which prefix the functions of a library and name its files.

The name of a build becomes a type and a prefix in C and C++ (`mnist`, `mnist_create`), the name of
a header (`mnist.h`) and of a Python module (`mnist.py`).  It may be any identifier that has no
other meaning in these places.  Words of the runtime's own source are allowed too, because that
source never contains the bare name (see `Source._write_words` of generate.py).
"""

from __future__ import annotations

import keyword
import re
import sys
import unicodedata

from engine.base.errors import ModelError


def _list_words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Of C23 and C++20, and the namespace of the C++ library.
KEYWORDS = _list_words("""
    alignas alignof and and_eq asm auto bitand bitor bool break case catch char char16_t char32_t
    char8_t class co_await co_return co_yield compl concept const const_cast consteval constexpr
    constinit continue decltype default delete do double dynamic_cast else enum explicit export
    extern false float for friend goto if inline int long mutable namespace new noexcept not not_eq
    nullptr operator or or_eq private protected public register reinterpret_cast requires restrict
    return short signed sizeof static static_assert static_cast std struct switch template this
    thread_local throw true try typedef typeid typename typeof typeof_unqual union unsigned using
    virtual void volatile wchar_t while xor xor_eq
""")

# Headers of C, and those that the runtime includes.
HEADERS = _list_words("""
    assert complex ctype errno fcntl fenv float inttypes io iso646 limits locale math process
    pthread setjmp signal stdalign stdarg stdatomic stdbit stdbool stdckdint stddef stdint stdio
    stdlib stdnoreturn string tgmath threads time uchar unistd wchar wctype windows
    message
""")

# Declarations in the headers of C, reserved by ISO C 7.1.3, and main.
LIBRARY = _list_words("""
    EOF NULL abort abs acos acosh asctime asin asinh assert atan atan2 atanh atexit atof atoi atol
    atoll bsearch calloc cbrt ceil clearerr clock copysign cos cosh ctime difftime div errno erf
    erfc exit exp exp2 expm1 fabs fclose fdim feof ferror fflush fgetc fgetpos fgets floor fma fmax
    fmin fmod fopen fprintf fputc fputs fread free freopen frexp fscanf fseek fsetpos ftell fwrite
    getc getchar getenv gets gmtime hypot ilogb isalnum isalpha isblank iscntrl isdigit isgraph
    islower isprint ispunct isspace isupper isxdigit labs ldexp ldiv lgamma llabs lldiv llrint
    llround localeconv localtime log log10 log1p log2 logb longjmp lrint lround main malloc mblen
    memchr memcmp memcpy memmove memset mktime modf nan nearbyint nextafter nexttoward offsetof
    perror pow printf putc putchar puts qsort raise rand realloc remainder remove remquo rename
    rewind rint round scalbln scalbn scanf setbuf setlocale setvbuf sin sinh snprintf sprintf sqrt
    srand sscanf stderr stdin stdout strcat strchr strcmp strcoll strcpy strcspn strerror strftime
    strlen strncat strncmp strncpy strpbrk strrchr strspn strstr strtod strtof strtok strtol
    strtold strtoll strtoul strtoull strxfrm system tan tanh tgamma tmpfile tmpnam trunc ungetc
    va_arg va_copy va_end va_start vfprintf vprintf vscanf vsprintf
""")

FIELDS = frozenset({"name", "dtype", "rank", "dims", "bytes", "trainable"})  # of NAME_tensor


def _list_faults(name: str) -> list[str]:
    """Return the reasons why a build cannot have a name, which begins with a letter or underscore
    and has letters, digits and underscores.
    """
    reasons = {
        "a keyword of C, C++ or Python": name in KEYWORDS or keyword.iskeyword(name),
        "reserved: no underscore first, no two together, no _t last": name.startswith("_")
        or "__" in name
        or name.endswith("_t"),
        "declared by the C library": name in LIBRARY,
        f"also the name of the system's header {name}.h": name in HEADERS,
        "also the name of a Python module": name in sys.stdlib_module_names or name == "numpy",
        "also the name of a field of the library's tensors": name in FIELDS,
        "the prefix of the library's own macros": name == "edgegrad",
    }
    return [reason for reason, holds in reasons.items() if holds]


def check_name(name: str) -> str:
    """Return the name, after checking that a build may have it.

    Raises:
        ModelError: it is not a C identifier, or it has a meaning in C, C++ or Python already.
    """
    if not (name.isidentifier() and name.isascii()):
        raise ModelError(
            f"name {name!r}: expected letters of ASCII, digits and underscores, and no digit "
            f"first, such as {make_name(name)!r}: choose one by --name"
        )
    for reason in _list_faults(name):
        raise ModelError(f"name {name!r} is {reason}; choose another by --name")
    return name


def make_name(text: str) -> str:
    """Return a name that a build may have, like a text, such as the name of a folder."""
    plain = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode()
    name = re.sub(r"[\W_]+", "_", plain).strip("_")
    if not name or name[0].isdigit():
        name = f"model_{name}".rstrip("_")
    return f"{name}_model" if _list_faults(name) else name
