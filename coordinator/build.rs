//! Tells the embedding where the dashboard is. It never calls npm: without a built dashboard a page that says
//! how to build one is embedded, so that `cargo build` alone works.

use std::{env, fs, path::PathBuf};

const STUB: &str = "<!doctype html><meta charset=utf-8><title>swarm</title><p>This binary was built without the \
dashboard. Build it with <code>npm ci &amp;&amp; npm run build</code> in <code>web-dashboard</code>, then build again.";

fn main() {
    let root = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it")).join("..");
    let built = root.join("web-dashboard").join("dist");
    println!("cargo::rerun-if-changed={}", built.display());
    let folder = if built.join("index.html").is_file() {
        built
    } else {
        let stub = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it")).join("dashboard");
        fs::create_dir_all(&stub).expect("OUT_DIR can be written");
        fs::write(stub.join("index.html"), STUB).expect("OUT_DIR can be written");
        stub
    };
    println!("cargo::rustc-env=DASHBOARD_DIST={}", folder.display());
}
