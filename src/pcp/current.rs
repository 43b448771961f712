//! The server of this process: libpcp_pmda's callbacks get no argument of ours, and there is one thread.

use super::server::Server;
use std::cell::RefCell;

thread_local! {
    static SERVER: RefCell<Option<Server>> = const { RefCell::new(None) };
}

/// From here on it is this one, or none.
pub(super) fn set(server: Option<Server>) {
    SERVER.set(server);
}

/// Runs something on the server; `None` while there is none.
pub(super) fn with_server<T>(run: impl FnOnce(&mut Server) -> T) -> Option<T> {
    SERVER.with_borrow_mut(|server| server.as_mut().map(run))
}
