// SPDX-License-Identifier: GPL-2.0-or-later

//! Writes the bindings to libpcp_pmda from the installed PCP headers.
//!
//! They are generated at build time because PCP 6 and 7 declare the same layouts under different names:
//! `src/pcp/pmda.h`.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    #[cfg(feature = "pcp")]
    pcp();
}

#[cfg(feature = "pcp")]
fn pcp() {
    println!("cargo::rerun-if-changed=src/pcp/pmda.h");
    println!("cargo::rerun-if-env-changed=PCP_INC_DIR");
    // The soname of libpcp_pmda is the same in PCP 6 and 7. That of libpcp differs, so it is not linked.
    println!("cargo::rustc-link-lib=dylib=pcp_pmda");
    let include = std::env::var("PCP_INC_DIR").unwrap_or_else(|_| "/usr/include/pcp".into());
    // A test compares the bindings with the headers.
    let arch = std::env::var("CARGO_CFG_TARGET_ARCH").expect("cargo sets it");
    println!("cargo::rustc-env=PCP_INCLUDE={include}");
    println!("cargo::rustc-env=PCP_ARCH={arch}");
    let bindings = bindgen::Builder::default()
        .header("src/pcp/pmda.h")
        .clang_arg(format!("-I{include}/.."))
        .rust_edition(bindgen::RustEdition::Edition2024)
        .rust_target(bindgen::RustTarget::stable(85, 0).expect("bindgen knows Rust 1.85"))
        .allowlist_function("pmda(Daemon|GetOpt|OpenLog|SetFlags|SetCommFlags|Init|Connect)")
        .allowlist_function("pmdaSet(Result|Label|EndContext)CallBack")
        .allowlist_function("pmda(Instance|Label|AddLabels)")
        .allowlist_function("__pmda(MainPDU|InFd)")
        .allowlist_type("nixl_pmda_result|pmHighResEvent(Array|Record)|pmEventParameter")
        .allowlist_var(
            "PM_ERR_.*|PM_TYPE_.*|PM_SEM_.*|PM_SPACE_.*|PM_TIME_.*|PM_COUNT_.*|PM_LABEL_.*|PM_VAL_.*|PM_PROFILE_.*|PM_EVENT_FLAG_.*",
        )
        .allowlist_var("PMDA_(INTERFACE_7|EXT_.*|FLAG_.*|ATTR_.*)")
        .default_macro_constant_type(bindgen::MacroTypeVariation::Signed)
        .parse_callbacks(Box::new(bindgen::CargoCallbacks::new()))
        .generate();
    let bindings = match bindings {
        Ok(bindings) => bindings,
        Err(err) => panic!(
            "{err}\ninstall PCP's PMDA headers (Debian: libpcp-pmda3-dev, RPM: pcp-libs-devel) and libclang"
        ),
    };
    let out = std::env::var("OUT_DIR").expect("cargo sets OUT_DIR");
    bindings
        .write_to_file(std::path::Path::new(&out).join("pmda.rs"))
        .expect("OUT_DIR can be written to");
}
