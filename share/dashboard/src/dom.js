// SPDX-License-Identifier: GPL-2.0-or-later

// Elements of the page. Text is never set as HTML: any local user can choose the name of an agent.

export function element(name, attributes = {}, ...children) {
    const made = document.createElement(name);
    for (const [attribute, value] of Object.entries(attributes)) {
        made.setAttribute(attribute, value);
    }
    made.append(...children);
    return made;
}

/** Sets a text if it has changed. */
export function setText(place, text) {
    if (place.textContent !== text) {
        place.textContent = text;
    }
}

/** Sets a name. Without room for all of it, the middle is left out, because many names differ in their last letters. */
export function setName(place, name) {
    if (place.textContent !== name) {
        const letters = [...name];
        const end = letters.length > 12 ? letters.splice(-6).join("") : "";
        place.replaceChildren(element("span", {}, letters.join("")), element("span", {}, end));
        place.classList.add("cut");
        place.title = name;
    }
}

export function byId(id) {
    return document.getElementById(id);
}

/** A colour of the style sheet, which depends on light or dark. */
export function colour(name) {
    return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}
