// SPDX-License-Identifier: GPL-2.0-or-later

//! Imports between modules: a module imports only modules that `src/lib.rs` lists before it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

fn source_directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src")
}

/// Top-level modules in the order of the table in the documentation of `lib.rs`.
fn module_order(lib: &str) -> Vec<String> {
    let items = lib.lines().filter_map(|line| line.strip_prefix("//! | [`"));
    let names = items.filter_map(|item| Some(item.split_once('`')?.0.to_owned()));
    names.collect()
}

/// Rust files below a directory.
fn rust_files(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).expect("a directory") {
        let path = entry.expect("listed").path();
        if path.is_dir() {
            rust_files(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

/// Code of a file without comments, string literals and modules of unit tests.
fn code(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(next) = rest.chars().next() {
        let len = match next {
            '/' if rest.starts_with("//") => rest.find('\n').unwrap_or(rest.len()),
            '/' if rest.starts_with("/*") => rest.find("*/").map_or(rest.len(), |end| end + 2),
            '"' => 1 + end_of_string(&rest[1..]),
            // A character literal. A lifetime has no second quotation mark.
            '\'' if rest[1..].starts_with('\\') => 2 + rest[2..].find('\'').unwrap_or(0) + 1,
            '\'' if rest[1..].chars().nth(1) == Some('\'') => {
                2 + rest[1..].chars().next().map_or(0, char::len_utf8)
            }
            _ => {
                out.push(next);
                rest = &rest[next.len_utf8()..];
                continue;
            }
        };
        rest = &rest[len.min(rest.len())..];
    }
    without_tests(&out)
}

/// Length of a string literal after its first quotation mark.
fn end_of_string(text: &str) -> usize {
    let mut escaped = false;
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'"' => return at + 1,
            _ => {}
        }
    }
    text.len()
}

/// Removes each item after `#[cfg(test)]`, up to its closing brace or semicolon.
fn without_tests(code: &str) -> String {
    let (mut out, mut rest) = (String::new(), code);
    while let Some(at) = rest.find("#[cfg(test)]") {
        out.push_str(&rest[..at]);
        rest = &rest[at..];
        let (mut depth, mut end) = (0_usize, rest.len());
        for (at, byte) in rest.bytes().enumerate() {
            match byte {
                b'{' => depth += 1,
                b'}' => depth = depth.saturating_sub(1),
                _ => {}
            }
            let is_over = depth == 0 && (byte == b'}' || byte == b';' || byte == b',');
            if is_over {
                end = at + 1;
                break;
            }
        }
        rest = &rest[end..];
    }
    out + rest
}

/// The modules of `folder` (empty: the crate, else such as `pcp::`) that the code of a module `depth` levels below it names.
fn imports(code: &str, folder: &str, depth: usize) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for prefix in [format!("crate::{folder}"), "super::".repeat(depth)] {
        for (at, _) in code.match_indices(&prefix) {
            let is_path =
                code[..at].ends_with(|before: char| before == ':' || before.is_alphanumeric());
            if !is_path {
                first_names(&code[at + prefix.len()..], &mut found);
            }
        }
    }
    found
}

/// First name of a path, or of each path in braces.
fn first_names(path: &str, found: &mut BTreeSet<String>) {
    let name = |text: &str| -> String {
        let is_part = |letter: &char| letter.is_alphanumeric() || *letter == '_';
        text.trim_start().chars().take_while(is_part).collect()
    };
    let Some(group) = path.strip_prefix('{') else {
        found.insert(name(path));
        return;
    };
    let (mut depth, mut start) = (0_usize, 0);
    for (at, letter) in group.char_indices() {
        match letter {
            '{' => depth += 1,
            '}' if depth == 0 => {
                found.insert(name(&group[start..at]));
                return;
            }
            '}' => depth -= 1,
            ',' if depth == 0 => {
                found.insert(name(&group[start..at]));
                start = at + 1;
            }
            _ => {}
        }
    }
}

/// Imports of later modules: importing module, imported module, and file.
fn backward_imports() -> BTreeSet<(String, String, PathBuf)> {
    let source = source_directory();
    let order = module_order(&fs::read_to_string(source.join("lib.rs")).expect("text"));
    let place = |name: &str| order.iter().position(|module| module == name);
    let mut files = Vec::new();
    rust_files(&source, &mut files);
    let mut found = BTreeSet::new();
    for path in files {
        let inside = path
            .strip_prefix(&source)
            .expect("in src")
            .with_extension("");
        let parts: Vec<_> = inside.iter().map(|part| part.to_string_lossy()).collect();
        if ["lib", "main"].contains(&&*parts[0]) {
            continue;
        }
        let own =
            place(&parts[0]).unwrap_or_else(|| panic!("{} is not listed in lib.rs", parts[0]));
        let text = fs::read_to_string(&path).expect("text");
        for name in imports(&code(&text), "", parts.len()) {
            if place(&name).is_some_and(|imported| imported > own) {
                found.insert((parts[0].to_string(), name, path.clone()));
            }
        }
    }
    found
}

#[test]
fn modules_import_only_modules_listed_before_them() {
    let found = backward_imports();
    assert!(
        found.is_empty(),
        "imports of a module that lib.rs lists later: {found:#?}"
    );
}

/// Files of a folder that import each other in a circle. Files of a subfolder count as the file with its name.
fn circle(folder: &str) -> Vec<String> {
    let directory = source_directory().join(folder);
    let mut files = Vec::new();
    rust_files(&directory, &mut files);
    let mut edges: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for path in files {
        let inside = path.strip_prefix(&directory).expect("in the folder");
        let inside = inside.with_extension("");
        let parts = Vec::from_iter(inside.iter().map(|part| part.to_string_lossy()));
        let text = fs::read_to_string(&path).expect("text");
        let path = folder.replace('/', "::") + "::";
        let named = imports(&code(&text), &path, parts.len());
        edges.entry(parts[0].to_string()).or_default().extend(named);
    }
    // Removes the files that import none of the remaining ones, until nothing changes.
    loop {
        let left: BTreeSet<String> = edges.keys().cloned().collect();
        edges.retain(|own, named| named.iter().any(|name| name != own && left.contains(name)));
        if edges.len() == left.len() {
            return left.into_iter().collect();
        }
    }
}

#[test]
fn files_of_a_folder_have_no_import_cycle() {
    for folder in ["pcp", "procfs", "procfs/facts"] {
        assert_eq!(circle(folder), [""; 0], "{folder}");
    }
}

#[test]
fn every_module_is_listed_once() {
    let lib = fs::read_to_string(source_directory().join("lib.rs")).expect("text");
    let order = module_order(&lib);
    let modules = lib
        .lines()
        .filter_map(|line| line.strip_prefix("pub mod ")?.strip_suffix(';'));
    let (mut listed, mut declared): (Vec<_>, Vec<_>) = (
        order.iter().map(String::as_str).collect(),
        modules.collect(),
    );
    listed.sort_unstable();
    declared.sort_unstable();
    assert_eq!(listed, declared);
}

#[test]
fn imports_are_found_in_code_only() {
    let text = r#"
        //! Not [`crate::pcp`].
        use crate::{log, base::file::FileId, shm::{Mapping, lock}};
        fn f() { super::super::ring::run(crate::event::MOST, "crate::check", '"', 'x'); }
        #[cfg(test)]
        use crate::metrics;
        #[cfg(test)]
        mod tests { use crate::agents; fn g() { if true {} } }
        fn h() { crate::journal::open() }
    "#;
    let found: Vec<_> = imports(&code(text), "", 2).into_iter().collect();
    assert_eq!(found, ["base", "event", "journal", "log", "ring", "shm"]);
}
