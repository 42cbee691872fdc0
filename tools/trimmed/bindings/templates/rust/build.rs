//! Says where the library is: in `native` of this folder.

fn main() {
    let folder = std::env::var("CARGO_MANIFEST_DIR").expect("cargo sets it");
    println!("cargo:rustc-link-search=native={folder}/native");
    println!("cargo:rustc-link-lib=dylib=@name@");
    println!("cargo:rerun-if-changed=native");
}
