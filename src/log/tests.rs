// SPDX-License-Identifier: GPL-2.0-or-later

use super::*;
use std::path::PathBuf;
use std::sync::{Arc, LazyLock};
use tracing::Dispatch;
use tracing_subscriber::layer::{Context, Layer};

struct Lines<F>(F);

impl<S, F> Layer<S> for Lines<F>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    F: Fn(&str) + 'static,
{
    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let user = context.lookup_current().map(|span| user_of(&span));
        (self.0)(&format!("{user:?} {event:?}"));
    }
}

/// Returns the begin of an event's text in [`with_events`], if it counts against the limits of this user.
pub(crate) fn begin_of_event(uid: Option<u32>) -> String {
    format!("{:?} Event", uid.map(|uid| format!("uid={uid}")))
}

/// Runs a closure, and calls `seen` with the `Debug` texts of the user and of each event that it logs. Returns the
/// result of the closure.
pub(crate) fn with_events<T>(
    seen: impl Fn(&str) + Send + Sync + 'static,
    run: impl FnOnce() -> T,
) -> T {
    // If there is one subscriber only, tracing asks that of the current thread what is logged, and caches the answer
    // for all threads: in another test it has none.
    static SECOND: LazyLock<Dispatch> = LazyLock::new(|| Dispatch::new(registry()));
    LazyLock::force(&SECOND);
    // The other layer keeps the fields of spans.
    let fields = layer().with_ansi(false).with_writer(std::io::sink);
    let log = registry().with(fields).with(Lines(seen));
    tracing::subscriber::with_default(log, run)
}

#[test]
fn innermost_span_names_the_user() {
    let users = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&users);
    let add = move |event: &str| {
        let user = event.split_once(" Event").map(|(user, _)| user.to_owned());
        seen.lock().expect("one thread").extend(user);
    };
    with_events(add, || {
        let outer = span(Some(1));
        {
            let _inner = span(None);
            tracing::info!("any user");
        }
        tracing::info!("user 1");
        drop(outer);
        tracing::info!("the daemon");
    });
    let users = users.lock().expect("one thread");
    assert_eq!(*users, [r#"Some("")"#, r#"Some("uid=1")"#, "None"]);
}

#[test]
fn invisible_characters_of_a_path_are_escaped() {
    let path = Path::new("/x/\u{202e}\u{3164}\u{fe0f}");
    assert_eq!(shown(path), r#""/x/\u{202e}\u{3164}\u{fe0f}""#);
}

#[test]
fn long_path_is_shown_without_its_middle() {
    let short = Path::new("/dev/shm/nixl/agent\n");
    assert_eq!(shown(short), r#""/dev/shm/nixl/agent\n""#);
    let long = PathBuf::from(format!("/dev/shm/{}end", "\u{200b}".repeat(80)));
    let cut = shown(&long);
    assert!(
        cut.len() <= MAX_SHOWN + 3 && cut.starts_with("\"/dev/shm/"),
        "{cut}"
    );
    assert!(cut.contains("...") && cut.ends_with("end\""), "{cut}");
}
