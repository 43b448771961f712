// SPDX-License-Identifier: GPL-2.0-or-later

//! Bindings that bindgen generates from the headers of PCP (`build.rs`).
// `warnings` does not include lints that Cargo.toml denies.
#![allow(
    warnings,
    clippy::multiple_unsafe_ops_per_block,
    clippy::undocumented_unsafe_blocks,
    missing_debug_implementations,
    missing_docs,
    unsafe_code,
    unsafe_op_in_unsafe_fn
)]

include!(concat!(env!("OUT_DIR"), "/pmda.rs"));

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::{align_of, offset_of, size_of};
    use std::process::Command;

    /// Generates one C assertion for each size and offset that Rust uses.
    macro_rules! assertions {
        ($($of:ident { $($($field:ident).+),* })*) => {
            [$(
                format!("_Static_assert(sizeof({0}) == {1}, \"{0}\");", stringify!($of), size_of::<$of>()),
                format!("_Static_assert(_Alignof({0}) == {1}, \"{0}\");", stringify!($of), align_of::<$of>()),
                $(format!(
                    "_Static_assert(offsetof({0}, {1}) == {2}, \"{0}.{1}\");",
                    stringify!($of),
                    concat!($(".", stringify!($field)),+).trim_start_matches('.'),
                    offset_of!($of, $($field).+)
                ),)*
            )*]
        };
    }

    #[test]
    #[allow(unused_comparisons)] // where `char` has no sign
    fn bindgen_layouts_match_the_c_compiler() {
        let assertions = assertions! {
            pmdaInterface { domain, comm, status, version, version.seven.ext, version.seven.fetch, version.seven.label }
            pmdaMetric { m_user, m_desc }
            pmDesc { pmid, type_, indom, sem, units }
            pmUnits {}
            pmAtomValue { l, ull, d, cp }
            pmdaIndom { it_indom, it_numinst, it_set }
            pmdaInstid { i_inst, i_name }
            pmLabelSet { inst, nlabels, json, labels }
            nixl_pmda_result { timestamp, numpmid, vset }
            pmValueSet { pmid, numval, valfmt, vlist }
            pmValue { inst, value }
            pmValueBlock { vbuf }
            pmProfile { state, profile_len, profile }
            pmInDomProfile { indom, state, instances_len, instances }
            pmdaExt { e_prof, e_context }
        };
        let mut source = "#include <stddef.h>\n".to_owned() + include_str!("pmda.h");
        for assertion in assertions {
            // bindgen appends an underscore to a field name that is a Rust keyword.
            source += &assertion.replace("type_", "type");
            source.push('\n');
        }
        let constants = [
            ("PM_ERR_EOF", i64::from(PM_ERR_EOF)),
            ("PM_TYPE_U64", i64::from(PM_TYPE_U64)),
            ("PM_SEM_DISCRETE", i64::from(PM_SEM_DISCRETE)),
            ("PMDA_INTERFACE_7", i64::from(PMDA_INTERFACE_7)),
            ("(char)-1 < 0", i64::from(std::ffi::c_char::MIN < 0)),
        ];
        for (name, value) in constants {
            source += &format!("_Static_assert(({name}) == {value}, \"{name}\");\n");
        }
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("layouts.c");
        std::fs::write(&file, source).expect("written");
        let compiled = |compiler: &str| {
            Command::new(compiler)
                .args(["-fsyntax-only", "-I", concat!(env!("PCP_INCLUDE"), "/..")])
                .arg(&file)
                .output()
        };
        // The cross compiler by its name on Debian. If the target is this machine, `cc` compiles for it too.
        let output = compiled(concat!(env!("PCP_ARCH"), "-linux-gnu-gcc"))
            .or_else(|_| compiled("cc"))
            .expect("a C compiler is there, by which Rust links");
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{stderr}");
    }
}
