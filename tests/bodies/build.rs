//! Compiles the C part of the attacks, and a plug-in that is loaded while the program runs.

use std::path::Path;

fn main() {
    println!("cargo::rerun-if-changed=c");
    println!("cargo::rustc-check-cfg=cfg(plugin)");
    if std::env::var_os("CARGO_FEATURE_C").is_none() {
        return;
    }
    cc::Build::new()
        .file("c/foreign.c")
        .warnings(true)
        .compile("foreign");
    // A statically linked program loads nothing.
    let features = std::env::var("CARGO_CFG_TARGET_FEATURE").unwrap_or_default();
    if features.split(',').any(|feature| feature == "crt-static") {
        return;
    }
    let out = std::env::var_os("OUT_DIR").expect("a directory for what is built");
    let plugin = Path::new(&out).join("libplugin.so");
    let mut compiler = cc::Build::new().pic(true).get_compiler().to_command();
    let linked = compiler
        .args(["-shared", "c/plugin.c", "-o"])
        .arg(&plugin)
        .status();
    assert!(linked.is_ok_and(|status| status.success()), "no plug-in");
    println!("cargo::rustc-env=INDENT_PLUGIN={}", plugin.display());
    println!("cargo::rustc-cfg=plugin");
}
