// What is not worth doing for each of many keys.

const PAUSE_MS = 150;

/** Does it once, when nothing more has come for a moment. */
export function debounced(action) {
    let timer;
    return () => {
        clearTimeout(timer);
        timer = setTimeout(action, PAUSE_MS);
    };
}
