// SPDX-License-Identifier: GPL-2.0-or-later

// Combines many key presses into one action.

const PAUSE_MS = 150;

/** Returns a function that runs `action` once, 150 ms after its last call. */
export function debounced(action) {
    let timer;
    return () => {
        clearTimeout(timer);
        timer = setTimeout(action, PAUSE_MS);
    };
}
