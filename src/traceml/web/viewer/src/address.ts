/** What the reader chose, kept in the page's address: it can be sent, and Back finds it again. */

/** A choice; `null` where the address does not name it. */
export function readChoice(name: string): string | null {
  return new URLSearchParams(window.location.search).get(name);
}

/** All values of a choice that may be made several times. */
export function readChoicesOf(name: string): readonly string[] {
  return new URLSearchParams(window.location.search).getAll(name);
}

/** Writes choices into the address without a new entry in the history; `null` takes one out. */
export function writeChoices(
  choices: Readonly<Record<string, string | readonly string[] | null>>,
): void {
  const search = new URLSearchParams(window.location.search);
  for (const [name, value] of Object.entries(choices)) {
    search.delete(name);
    const values = typeof value === "string" ? [value] : (value ?? []);
    for (const one of values) if (one !== "") search.append(name, one);
  }
  const query = search.toString();
  const address = `${window.location.pathname}${query && `?${query}`}${window.location.hash}`;
  try {
    window.history.replaceState(window.history.state, "", address);
  } catch {
    // a notebook's frame has no address to write to: the choice lasts as long as the page
  }
}

const LIST = "traceml-list";

/** Keeps how the list of runs is filtered, sorted and ticked, for the way back from a run. */
export function rememberList(): void {
  try {
    window.sessionStorage.setItem(LIST, window.location.search);
  } catch {
    // no storage here: the list begins anew
  }
}

/** The list as it was last left in this tab: "?q=bound". */
export function rememberedList(): string {
  try {
    return window.sessionStorage.getItem(LIST) ?? "";
  } catch {
    return "";
  }
}
