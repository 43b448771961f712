// SPDX-License-Identifier: GPL-2.0-or-later

//! Parts of a command line (`/proc/PID/cmdline`, proc_pid_cmdline(5)): a title that the process gave itself, or a
//! program and its arguments.
//!
//! The Python package setproctitle writes a title over the command line, moves the environment elsewhere, and fills
//! both of their old places with NULs. vLLM (`set_process_title` in vllm/utils/system_utils.py,
//! `setup_proc_title_and_log_prefix` in vllm/v1/executor/multiproc_executor.py) and SGLang
//! (`configure_scheduler_process` in python/sglang/srt/managers/scheduler.py) use it:
//!
//! | title | rank |
//! | --- | --- |
//! | `VLLM::Worker_TP0`, `VLLM::Worker_DP1_PP0_TP3_EP7` | `TP0`, `DP1_PP0_TP3_EP7` |
//! | `VLLM::EngineCore_DP1`, `VLLM::EngineCore`, `VLLM::APIServer_0` | `DP1`, none, none |
//! | `sglang::scheduler_DP1_TP3`, `sglang::scheduler_ATTN_CP0_TP1` | `DP1_TP3`, `ATTN_CP0_TP1` |
//!
//! `VLLM` is only the default of VLLM_PROCESS_NAME_PREFIX. Ray's titles (`ray::RayWorkerWrapper.execute_method`) have
//! no rank.

use crate::base::text;

/// Limit of a command line, in bytes. One argument can have 128 KiB (MAX_ARG_STRLEN of execve(2)), and vLLM takes JSON.
pub const MAX_CMDLINE: u64 = 256 << 10;
/// Limit of [`CommandLine::shown`], in bytes.
pub const MAX_SHOWN: usize = 96;
/// Limit of a rank, in bytes.
pub const MAX_RANK: usize = 48;

/// What a process runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Program {
    /// Title that the process gave itself.
    Title(String),
    /// Path of an executable file, or of an interpreter's script.
    File(String),
    /// Module behind an interpreter's `-m`.
    Module(String),
    /// Code behind an interpreter's `-c` or from its standard input, or no program.
    Code,
}

/// A command line in parts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommandLine {
    /// File name of the Python interpreter, if one runs the program.
    pub interpreter: Option<String>,
    /// Program that the process runs.
    pub program: Program,
    /// Words behind the program, without a word that is cut.
    pub arguments: Vec<String>,
}

impl CommandLine {
    /// Returns the parts of the first [`MAX_CMDLINE`] bytes of a command line; `None` if it is empty, as in a kernel
    /// thread.
    #[must_use]
    pub fn parse(cmdline: &[u8]) -> Option<Self> {
        let text = String::from_utf8_lossy(cmdline);
        let mut words = text.split('\0');
        let first = words.next().filter(|first| !first.is_empty())?;
        let mut arguments = Vec::from_iter(words.map(str::to_owned));
        // Behind the last NUL is nothing, or a word that is cut. A title that is longer than the command line was has
        // no NUL.
        let rest = arguments.pop();
        let is_ended = rest.as_deref().is_none_or(str::is_empty);
        let is_padding = is_ended && arguments.iter().all(String::is_empty);
        let is_padded =
            is_padding && (rest.is_none() || !arguments.is_empty() || first.contains(' '));
        let mut line = Self {
            interpreter: None,
            program: Program::File(first.to_owned()),
            arguments,
        };
        if !first.starts_with('/') && (is_padded || is_scoped_title(first)) {
            line.program = Program::Title(first.to_owned());
        } else if is_padded {
            // The title repeats a path. It may repeat arguments, which can contain secrets.
            line.program = Program::File(until_blank(first).to_owned());
        } else if is_python(last(first)) {
            line.interpreter = Some(last(first).to_owned());
            let mut words = std::mem::take(&mut line.arguments).into_iter();
            line.program = python_program(&mut words).unwrap_or(Program::Code);
            line.arguments = words.collect();
        }
        Some(line)
    }

    /// Returns the name of the program: the file name, or the Python module, also if it was given as a file of an
    /// installed package; empty for a title and for code.
    #[must_use]
    pub fn name(&self) -> String {
        match &self.program {
            Program::Module(module) => module.clone(),
            Program::File(path) => {
                let mut names = path.split('/');
                let is_packages = |name| matches!(name, "site-packages" | "dist-packages");
                if !names.any(is_packages) {
                    return last(path).to_owned();
                }
                let module = Vec::from_iter(names).join(".");
                module.strip_suffix(".py").unwrap_or(&module).to_owned()
            }
            Program::Title(_) | Program::Code => String::new(),
        }
    }

    /// Returns the rank in the title of an engine's process: the parts from the first one in capital letters on, such
    /// as `DP1_TP0`.
    #[must_use]
    pub fn rank(&self) -> Option<String> {
        let Program::Title(title) = &self.program else {
            return None;
        };
        let (_, name) = title.split_once("::")?;
        let is_axis = |part: &str| {
            let letters = part.trim_end_matches(|c: char| c.is_ascii_digit());
            !letters.is_empty() && letters.bytes().all(|byte| byte.is_ascii_uppercase())
        };
        // The first part is the role of the process.
        let parts = name.split('_').skip(1);
        let rank = Vec::from_iter(parts.skip_while(|part| !is_axis(part)));
        let is_rank = rank.iter().all(|part| is_axis(part));
        let text = rank.join("_");
        (is_rank && text.ends_with(|c: char| c.is_ascii_digit()) && text.len() <= MAX_RANK)
            .then_some(text)
    }

    /// Returns title or program of the process, without arguments, since these can contain secrets: the title up to the
    /// first blank, or the file name of the program; for Python, the interpreter and then the script or module. Control
    /// and invisible characters are escaped, and the text ends after [`MAX_SHOWN`] bytes.
    #[must_use]
    pub fn shown(&self) -> Option<String> {
        let name = match &self.program {
            Program::Title(title) => until_blank(title),
            Program::File(path) => last(path),
            Program::Module(module) => &format!("-m {module}"),
            Program::Code => "",
        };
        let interpreter = self.interpreter.as_deref().unwrap_or_default();
        let words = format!("{interpreter} {name}");
        let mut shown = String::new();
        for char in words.trim().chars() {
            let escaped = text::escaped(char);
            if shown.len() + escaped.len() > MAX_SHOWN {
                break;
            }
            shown.push_str(&escaped);
        }
        Some(shown).filter(|shown| !shown.is_empty())
    }
}

/// Returns the last name of a path.
fn last(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or_default()
}

fn until_blank(title: &str) -> &str {
    title.split_whitespace().next().unwrap_or_default()
}

/// True for a title in the format of engines: `PREFIX::NAME`.
fn is_scoped_title(word: &str) -> bool {
    !word.contains('/') && word.find("::").is_some_and(|at| at > 0)
}

/// True for `python`, `python3`, `python3.12`, and the builds without a lock (`python3.13t`).
fn is_python(program: &str) -> bool {
    program.strip_prefix("python").is_some_and(|version| {
        let version = version.strip_suffix('t').unwrap_or(version);
        version
            .bytes()
            .all(|byte| byte.is_ascii_digit() || byte == b'.')
    })
}

/// Returns what a Python interpreter runs, from the words behind its name. The arguments of the program are left in
/// `words`.
fn python_program(words: &mut impl Iterator<Item = String>) -> Option<Program> {
    while let Some(word) = words.next() {
        match &*word {
            "-X" | "-W" => drop(words.next()),
            // Options may be combined (`-um`).
            option if option.starts_with('-') && !option.starts_with("--") => {
                match option.chars().last() {
                    Some('m') => return words.next().map(Program::Module),
                    // The code comes from standard input, or is an argument.
                    Some('-' | 'c') => return None,
                    _ => {}
                }
            }
            option if option.starts_with('-') => {}
            _ => return Some(Program::File(word)),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(cmdline: &[u8]) -> Option<String> {
        CommandLine::parse(cmdline)?.shown()
    }

    /// Returns the rank in a title that is followed by NULs.
    fn rank(title: &str) -> Option<String> {
        CommandLine::parse(format!("{title}\0\0\0\0").as_bytes())?.rank()
    }

    #[test]
    fn title_gives_rank_of_all_its_parts() {
        for (title, expected) in [
            ("VLLM::Worker_TP0", "TP0"),
            ("VLLM::Worker_DP1_TP0", "DP1_TP0"),
            (
                "VLLM::Worker_DP0_PP1_PCP0_TP3_DCP1_EP15",
                "DP0_PP1_PCP0_TP3_DCP1_EP15",
            ),
            ("VLLM::EngineCore_DP1", "DP1"),
            ("prefill-a::Worker_TP7", "TP7"),
            ("sglang::scheduler_TP0", "TP0"),
            ("sglang::scheduler_DP1_TP3", "DP1_TP3"),
            (
                "sglang::scheduler_DP0_PP0_ATTN_CP1_MOE_DP0_TP1_EP1",
                "DP0_PP0_ATTN_CP1_MOE_DP0_TP1_EP1",
            ),
            ("sglang::gpu_worker_TP1_PP0", "TP1_PP0"),
        ] {
            // The longest known ranks are not cut.
            assert_eq!(rank(title).as_deref(), Some(expected), "{title}");
        }
    }

    #[test]
    fn title_without_rank_gives_none() {
        for title in [
            "VLLM::Worker",
            "VLLM::EngineCore",
            "VLLM::APIServer_0",
            "VLLM::TP0",
            "VLLM::Worker_TP",
            "VLLM::Worker_TP0_x",
            "VLLM::Worker_TP0 --token x",
            "sglang::detokenizer",
            "sglang::tokenizer_worker:123",
            "sglang::detokenizer_handler_0",
            "sglang::scheduler",
            "ray::RayWorkerWrapper.execute_method",
            "Worker_TP0",
            "/opt/x::Worker_TP0",
            "\u{e9}::Worker_\u{c9}0",
            &format!("VLLM::Worker_{}", "TP0_".repeat(20) + "TP0"),
        ] {
            assert_eq!(rank(title), None, "{title}");
        }
        let argument = CommandLine::parse(b"cat\0VLLM::Worker_TP0\0").expect("words");
        assert_eq!(argument.rank(), None);
    }

    #[test]
    fn command_is_shown_without_arguments() {
        for (cmdline, expected) in [
            (&b"VLLM::Worker_TP0\0\0\0\0\0"[..], "VLLM::Worker_TP0"),
            // A title as long as the command line was, and a longer one.
            (b"VLLM::Worker_TP0\0", "VLLM::Worker_TP0"),
            (b"VLLM::Worker_DP1_TP0", "VLLM::Worker_DP1_TP0"),
            (b"sglang::scheduler_TP1\0\0", "sglang::scheduler_TP1"),
            (
                b"ray::RayWorkerWrapper.execute_method\0\0",
                "ray::RayWorkerWrapper.execute_method",
            ),
            (b"nginx: worker process\0\0\0", "nginx:"),
            (b"serve --token hf_x\0", "serve"),
            (b"/opt/serve --dir /hf_x\0\0\0", "serve"),
            // A title as long as the command line was. A path with a blank looks the same.
            (b"/opt/serve --url http://h/hf_x\0", "serve"),
            (b"/opt/my tools/serve\0", "my"),
            (
                b"/usr/local/bin/nixlbench\0--etcd\0http://hf_x\0",
                "nixlbench",
            ),
            (b"./app\0", "app"),
            (
                b"/usr/bin/python3.12\0/opt/venv/bin/vllm\0serve\0m\0--api-key\0hf_x\0",
                "python3.12 vllm",
            ),
            (
                b"python3\0-u\0-m\0sglang.launch_server\0--api-key\0hf_x\0",
                "python3 -m sglang.launch_server",
            ),
            (b"python3\0-c\0print('hf_x')\0", "python3"),
            (b"python3\0-\0hf_x\0", "python3"),
            (b"python3\0", "python3"),
            (b"bash\0-c\0vllm serve\0", "bash"),
        ] {
            assert_eq!(shown(cmdline).as_deref(), Some(expected), "{cmdline:?}");
        }
        for cmdline in [&b""[..], b"\0", b"\0\0\0", b"/\0"] {
            assert_eq!(shown(cmdline), None, "{cmdline:?}");
        }
    }

    #[test]
    fn shown_command_is_escaped_and_bounded() {
        let forged = b"./a\x1b[31m\n\xff\"\0x\0";
        assert_eq!(
            shown(forged).as_deref(),
            Some("a\\u{1b}[31m\\n\u{fffd}\\\"")
        );
        for byte in [b'x', 1, b'"', 0xff] {
            let cmdline = [&[byte; 300][..], b"\0x\0"].concat();
            let len = shown(&cmdline).expect("it is shown").len();
            assert!((MAX_SHOWN - 6..=MAX_SHOWN).contains(&len), "{len}");
        }
    }

    #[test]
    fn cut_word_is_not_an_argument() {
        let cut = CommandLine::parse(b"vllm\0serve\0--port\x0081").expect("words");
        assert_eq!(cut.arguments, ["serve", "--port"]);
        let whole = CommandLine::parse(b"vllm\0serve\0--port\x0081\0").expect("words");
        assert_eq!(whole.arguments.len(), 3);
        // A command line that ends in its first argument is not a title.
        let cut = CommandLine::parse(b"serve\0{\"a\": ").expect("words");
        assert_eq!(cut.program, Program::File("serve".into()));
        assert!(cut.arguments.is_empty());
    }
}
