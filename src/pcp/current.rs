// SPDX-License-Identifier: GPL-2.0-or-later

//! The one [`Server`] of this process, in a thread-local variable. libpcp_pmda passes no user data to its callbacks. It
//! calls all of them in the event-loop thread.

use super::server::Server;
use std::cell::RefCell;

thread_local! {
    static SERVER: RefCell<Option<Server>> = const { RefCell::new(None) };
}

/// Sets the server that [`with_server`] uses. `None` removes it.
pub(super) fn set(server: Option<Server>) {
    SERVER.set(server);
}

/// Runs `run` with the server. Returns `None` if there is no server.
pub(super) fn with_server<T>(run: impl FnOnce(&mut Server) -> T) -> Option<T> {
    SERVER.with_borrow_mut(|server| server.as_mut().map(run))
}
