// SPDX-License-Identifier: GPL-2.0-or-later

//! The sample producer for `make run`. The example of the same name needs all crates of the tests, such as loom.

#[path = "main.rs"]
mod producer;

fn main() -> std::process::ExitCode {
    producer::main()
}
