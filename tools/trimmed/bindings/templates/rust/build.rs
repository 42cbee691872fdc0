//! Copies the library in `native` to cargo's build folder, where `cargo run` and `cargo test` of
//! programs that use this crate find it.

use std::path::Path;
use std::{env, fs};

fn main() {
    let of = |name: &str| env::var(name).expect("cargo sets it");
    let target = format!("{}-{}", of("CARGO_CFG_TARGET_OS"), of("CARGO_CFG_TARGET_ARCH"));
    let folder = Path::new(&of("CARGO_MANIFEST_DIR")).join("native").join(&target);
    let libraries = fs::read_dir(&folder).unwrap_or_else(|_| {
        panic!("`native` has no library for {target}: add this target to `edgegrad build --target`")
    });
    let made = of("OUT_DIR");
    for library in libraries {
        let path = library.expect("the folder can be read").path();
        let name = path.file_name().expect("it is a file");
        fs::copy(&path, Path::new(&made).join(name)).expect("OUT_DIR can be written");
    }
    println!("cargo:rustc-link-search=native={made}");
    println!("cargo:rustc-link-lib=dylib=@name@");
    println!("cargo:rerun-if-changed={}", folder.display());
}
