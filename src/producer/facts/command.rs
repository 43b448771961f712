//! The parts of a command line (`/proc/PID/cmdline`, proc_pid_cmdline(5)): a title that the process gave itself, or a program
//! and its arguments.
//!
//! The Python package setproctitle writes a title over the command line, moves the environment elsewhere, and fills both of
//! their old places with NULs. vLLM (`set_process_title` in vllm/utils/system_utils.py, `setup_proc_title_and_log_prefix` in
//! vllm/v1/executor/multiproc_executor.py) and SGLang (`configure_scheduler_process` in
//! python/sglang/srt/managers/scheduler.py) use it:
//!
//! | title | rank |
//! | --- | --- |
//! | `VLLM::Worker_TP0`, `VLLM::Worker_DP1_PP0_TP3_EP7` | `TP0`, `DP1_PP0_TP3_EP7` |
//! | `VLLM::EngineCore_DP1`, `VLLM::EngineCore`, `VLLM::APIServer_0` | `DP1`, none, none |
//! | `sglang::scheduler_DP1_TP3`, `sglang::scheduler_ATTN_CP0_TP1` | `DP1_TP3`, `ATTN_CP0_TP1` |
//!
//! `VLLM` is only the default of VLLM_PROCESS_NAME_PREFIX. Ray's titles (`ray::RayWorkerWrapper.execute_method`) have no rank.

/// Bytes that are read of a command line. One argument can have 128 KiB (MAX_ARG_STRLEN of execve(2)): vLLM takes JSON.
pub const MAX_CMDLINE: u64 = 256 << 10;
/// The longest text of [`CommandLine::shown`], in bytes.
pub const MAX_SHOWN: usize = 96;
/// The longest rank, in bytes.
pub const MAX_RANK: usize = 48;

/// What a process runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Program<'a> {
    /// The title that the process gave itself.
    Title(&'a [u8]),
    /// Path of an executable file, or of an interpreter's script.
    File(&'a [u8]),
    /// The module behind an interpreter's `-m`.
    Module(&'a [u8]),
    /// Code behind an interpreter's `-c` or from its standard input, or no program at all.
    Code,
}

/// A command line in parts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommandLine<'a> {
    /// Path of the Python interpreter, if one runs the program.
    pub interpreter: Option<&'a [u8]>,
    /// What the process runs.
    pub program: Program<'a>,
    /// The words behind the program, without one that is cut.
    pub arguments: Vec<&'a [u8]>,
    /// True if no argument can be missing.
    pub is_whole: bool,
}

impl<'a> CommandLine<'a> {
    /// The parts of the first [`MAX_CMDLINE`] bytes of a command line; `None` if it is empty, as that of a kernel thread is.
    #[must_use]
    pub fn parse(cmdline: &'a [u8]) -> Option<Self> {
        let mut words: Vec<&[u8]> = cmdline.split(|&byte| byte == 0).collect();
        // Behind the last NUL: nothing, or a word that is cut.
        let rest = words.pop()?;
        let is_whole = rest.is_empty() && (cmdline.len() as u64) < MAX_CMDLINE;
        // A title that is longer than the command line was, and so has no NUL behind it.
        let is_unended = words.is_empty();
        if is_unended {
            words.push(rest);
        }
        let (&first, arguments) = words.split_first()?;
        let is_followed_by_nuls =
            !arguments.is_empty() && arguments.iter().all(|word| word.is_empty());
        let is_padded = is_unended || (is_followed_by_nuls && rest.is_empty());
        let is_alone = arguments.is_empty() && first.contains(&b' ');
        let mut line = Self {
            interpreter: None,
            program: Program::File(first),
            arguments: arguments.to_vec(),
            is_whole,
        };
        if first.is_empty() {
            return None;
        } else if !first.starts_with(b"/") && (is_padded || is_alone || has_scope(first)) {
            line.program = Program::Title(first);
        } else if is_padded || is_alone {
            // A title that repeats a path, and may repeat arguments, which can hold secrets.
            line.program = Program::File(until_blank(first));
        } else if is_python(last(first)) {
            (line.program, line.arguments) = run_by_python(arguments);
            line.interpreter = Some(first);
        }
        Some(line)
    }

    /// True if the process has overwritten its command line with a title.
    #[must_use]
    pub fn is_title(&self) -> bool {
        matches!(self.program, Program::Title(_))
    }

    /// The name of the Python module that runs, also where it was given as a file of an installed package.
    #[must_use]
    pub fn module(&self) -> Option<Vec<u8>> {
        match self.program {
            Program::Module(module) => Some(module.to_vec()),
            Program::File(path) => {
                let mut names = path.split(|&byte| byte == b'/');
                names.find(|name| matches!(*name, b"site-packages" | b"dist-packages"))?;
                let module = names.collect::<Vec<_>>().join(&b'.');
                Some(module.strip_suffix(b".py").unwrap_or(&module).to_vec())
            }
            Program::Title(_) | Program::Code => None,
        }
    }

    /// The rank in the title of an engine's process: its parts from the first one in capital letters on, such as `DP1_TP0`.
    #[must_use]
    pub fn rank(&self) -> Option<String> {
        let Program::Title(title) = self.program else {
            return None;
        };
        let title = std::str::from_utf8(title).ok()?;
        let (_, name) = title.split_once("::")?;
        let is_axis = |part: &str| {
            let letters = part.trim_end_matches(|c: char| c.is_ascii_digit());
            !letters.is_empty() && letters.bytes().all(|byte| byte.is_ascii_uppercase())
        };
        let parts: Vec<&str> = name.split('_').collect();
        // The first part is what the process does.
        let from = 1 + parts.iter().skip(1).position(|part| is_axis(part))?;
        let rank = parts.get(from..)?;
        let is_rank = rank.iter().all(|part| is_axis(part));
        let text = rank.join("_");
        (is_rank && text.ends_with(|c: char| c.is_ascii_digit()) && text.len() <= MAX_RANK)
            .then_some(text)
    }

    /// Title or program of the process, without arguments, since these can hold secrets: the title up to the first blank, or the
    /// file name of the program, with a Python script's or module's name behind the interpreter's. Control characters are
    /// escaped, and the text ends after [`MAX_SHOWN`] bytes.
    #[must_use]
    pub fn shown(&self) -> Option<String> {
        let (option, name) = match self.program {
            Program::Title(title) => ("", until_blank(title)),
            Program::File(path) => ("", last(path)),
            Program::Module(module) => ("-m ", module),
            Program::Code => ("", &b""[..]),
        };
        let interpreter = self.interpreter.map(last).unwrap_or_default();
        let words = [interpreter, &[option.as_bytes(), name].concat()].join(&b' ');
        let mut shown = String::new();
        for char in String::from_utf8_lossy(words.trim_ascii()).chars() {
            let escaped = char.escape_debug();
            if shown.len() + escaped.clone().map(char::len_utf8).sum::<usize>() > MAX_SHOWN {
                break;
            }
            shown.extend(escaped);
        }
        Some(shown).filter(|shown| !shown.is_empty())
    }
}

/// The last name of a path.
#[must_use]
pub fn last(path: &[u8]) -> &[u8] {
    path.rsplit(|&byte| byte == b'/').next().unwrap_or_default()
}

fn until_blank(title: &[u8]) -> &[u8] {
    let mut words = title.split(u8::is_ascii_whitespace);
    words.next().unwrap_or_default()
}

/// True if it is a title as engines give them: `PREFIX::NAME`.
fn has_scope(word: &[u8]) -> bool {
    !word.contains(&b'/') && word.windows(2).skip(1).any(|two| two == b"::")
}

/// `python`, `python3`, `python3.12`, and builds of it with a letter behind (`python3.13t`).
fn is_python(program: &[u8]) -> bool {
    program.strip_prefix(b"python").is_some_and(|version| {
        let version = version.strip_suffix(b"t").unwrap_or(version);
        version
            .iter()
            .all(|&byte| byte.is_ascii_digit() || byte == b'.')
    })
}

/// What a Python interpreter was given, and the words behind that; the words given are those behind its own name.
fn run_by_python<'a>(words: &[&'a [u8]]) -> (Program<'a>, Vec<&'a [u8]>) {
    let mut words = words.iter().copied();
    let program = program_of_python(&mut words).unwrap_or(Program::Code);
    (program, words.collect())
}

fn program_of_python<'a>(words: &mut impl Iterator<Item = &'a [u8]>) -> Option<Program<'a>> {
    while let Some(word) = words.next() {
        let options = match word {
            // The program comes from standard input, and what follows are its arguments.
            b"-" => return None,
            b"--" => return words.next().map(Program::File),
            b"--check-hash-based-pycs" => {
                words.next();
                continue;
            }
            [b'-', b'-', ..] => continue,
            [b'-', options @ ..] => options,
            script => return Some(Program::File(script)),
        };
        // Letters stand together (`-um`), and what one takes may stand right behind it.
        for (at, option) in options.iter().enumerate() {
            let behind = options.get(at + 1..).filter(|rest| !rest.is_empty());
            match option {
                b'm' => return behind.or_else(|| words.next()).map(Program::Module),
                b'c' => return None,
                b'W' | b'X' => {
                    behind.or_else(|| words.next());
                    break;
                }
                _ => {}
            }
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

    /// The rank in a title that NULs follow.
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
            // The longest that are known are cut nowhere.
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
        assert_eq!(cut.arguments, [&b"serve"[..], b"--port"]);
        assert!(!cut.is_whole);
        let whole = CommandLine::parse(b"vllm\0serve\0--port\x0081\0").expect("words");
        assert!(whole.is_whole && whole.arguments.len() == 3);
        let mut long = b"vllm\0serve\0".repeat(30_000);
        long.truncate(usize::try_from(MAX_CMDLINE).expect("small"));
        assert!(!CommandLine::parse(&long).expect("words").is_whole);
        // A first argument that is cut is no title.
        let cut = CommandLine::parse(b"serve\0{\"a\": ").expect("words");
        assert_eq!(cut.program, Program::File(b"serve"));
        assert!(cut.arguments.is_empty() && !cut.is_whole);
    }
}
