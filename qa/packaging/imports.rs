// SPDX-License-Identifier: GPL-2.0-or-later

//! Imports between modules: a module imports only modules that `src/lib.rs` lists before it. The width of comments.

use proc_macro2::{Delimiter, TokenStream, TokenTree};
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

/// Tokens of code without modules, imports and other items for unit tests. Comments are no tokens, and documentation is
/// a literal.
fn tokens(code: TokenStream) -> Vec<TokenTree> {
    let mut left = code.into_iter();
    let mut found: Vec<TokenTree> = Vec::new();
    while let Some(token) = left.next() {
        let is_attribute =
            matches!(found.last(), Some(TokenTree::Punct(last)) if last.as_char() == '#');
        if is_attribute && token.to_string().replace(' ', "") == "[cfg(test)]" {
            found.pop();
            // The item ends with a body or a semicolon, a field with a comma.
            let _ = left.find(|token| match token {
                TokenTree::Group(group) => group.delimiter() == Delimiter::Brace,
                TokenTree::Punct(end) => [';', ','].contains(&end.as_char()),
                _ => false,
            });
        } else {
            found.push(token);
        }
    }
    found
}

/// Modules of `folder` (empty: the crate, else such as `["pcp"]`) that code of a module `depth` levels below it
/// imports.
fn imports(code: &[TokenTree], folder: &[&str], depth: usize) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for token in code {
        if let TokenTree::Group(group) = token {
            found.extend(imports(&tokens(group.stream()), folder, depth));
        }
    }
    let absolute = [&["crate"], folder].concat();
    for prefix in [absolute, vec!["super"; depth]] {
        // A path is a name, and then two colons and a name for each further part.
        let is_here = |at: usize| {
            let mut names = (0..).map(|part| at + 3 * part).zip(&prefix);
            names.all(|(at, name)| has_name(code, at, name))
                && !(at >= 3 && has_name(code, at - 3, &code[at - 3].to_string()))
        };
        for at in (0..code.len()).filter(|&at| is_here(at)) {
            match code.get(at + 3 * prefix.len()) {
                Some(TokenTree::Ident(name)) => {
                    found.insert(name.to_string());
                }
                // The first name of each path in braces.
                Some(TokenTree::Group(group)) => {
                    let paths = Vec::from_iter(group.stream());
                    let paths = paths.split(|token| token.to_string() == ",");
                    found.extend(paths.filter_map(|path| Some(path.first()?.to_string())));
                }
                _ => {}
            }
        }
    }
    found
}

/// True if this token is a name, which a path continues.
fn has_name(code: &[TokenTree], at: usize, name: &str) -> bool {
    let is = |at: usize, text: &str| code.get(at).is_some_and(|token| token.to_string() == text);
    is(at, name) && is(at + 1, ":") && is(at + 2, ":")
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
        for name in imports(&tokens(text.parse().expect("Rust")), &[], parts.len()) {
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
        let path: Vec<&str> = folder.split('/').collect();
        let named = imports(&tokens(text.parse().expect("Rust")), &path, parts.len());
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
    let found: Vec<_> = imports(&tokens(text.parse().expect("Rust")), &[], 2)
        .into_iter()
        .collect();
    assert_eq!(found, ["base", "event", "journal", "log", "ring", "shm"]);
}

/// Except for tables.
#[test]
fn comments_end_within_120_columns() {
    let (mut files, top) = (Vec::new(), Path::new(env!("CARGO_MANIFEST_DIR")));
    for directory in ["src", "qa"] {
        rust_files(&top.join(directory), &mut files);
    }
    for path in files {
        let text = fs::read_to_string(&path).expect("read");
        let comments = text
            .lines()
            .filter(|line| line.trim_start().starts_with("//"));
        let mut long = comments.filter(|line| line.chars().count() > 120 && !line.contains("| "));
        assert_eq!(long.next(), None, "{}", path.display());
    }
}
