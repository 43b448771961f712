//! How a process is told that uses NIXL: it has libnixl mapped, as all of NIXL's packages and of the engines come with it.

/// Whether a line of /proc/PID/maps names libnixl: `libnixl.so`, `libnixl_build.so`, `libnixl-4f1c.so.1` and so on.
#[must_use]
pub fn is_nixl(line: &[u8]) -> bool {
    const NAME: &[u8] = b"/libnixl";
    let path = line.trim_ascii_end();
    // Of most lines no more than the end is looked at, and there are many.
    let Some(slash) = path.iter().rposition(|&byte| byte == b'/') else {
        return false;
    };
    let rest = path[slash..].strip_prefix(NAME);
    rest.is_some_and(|rest| {
        matches!(rest.first(), Some(b'.' | b'_' | b'-'))
            && rest.windows(3).any(|part| part == b".so")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_of_nixls_are_told_from_others() {
        let line = |path: &str| format!("7f00-7f10 r-xp 00001000 fe:01 4711   {path}\n");
        for (path, expected) in [
            ("/opt/nixl/lib/libnixl.so", true),
            ("/venv/.nixl_cu12.mesonpy.libs/libnixl_build.so", true),
            ("/usr/lib/libnixl-4f1c2.so.1.5 (deleted)", true),
            ("/usr/lib/libnixlish.so", false),
            ("/usr/lib/libnixl.py", false),
            ("/libnixl.so/other", false),
            ("libnixl.so", false),
            ("", false),
        ] {
            assert_eq!(is_nixl(line(path).as_bytes()), expected, "{path}");
        }
    }
}
