/** Applies what the server says has changed, and leaves everything else the very same object. */

/** `null`: no change. The counterpart of web/delta.py. */
export type Delta =
  | null
  | { set: unknown }
  | { keys: Record<string, Delta>; drop?: readonly string[] }
  | { from: number; tail: readonly unknown[] }
  | { items: Record<string, Delta>; length: number };

export function applied(before: unknown, delta: Delta): unknown {
  if (delta === null) return before;
  if ("set" in delta) return delta.set;
  if ("keys" in delta) return withKeys(before as Record<string, unknown>, delta);
  if ("tail" in delta) return (before as unknown[]).slice(0, delta.from).concat(delta.tail);
  return withItems(before as unknown[], delta);
}

function withKeys(
  before: Record<string, unknown>,
  delta: { keys: Record<string, Delta>; drop?: readonly string[] },
): Record<string, unknown> {
  const after = { ...before };
  for (const [name, inner] of Object.entries(delta.keys))
    after[name] = applied(before[name], inner);
  for (const name of delta.drop ?? []) delete after[name];
  return after;
}

function withItems(
  before: readonly unknown[],
  delta: { items: Record<string, Delta>; length: number },
): unknown[] {
  const after = before.slice(0, delta.length);
  for (const [index, inner] of Object.entries(delta.items)) {
    after[Number(index)] = applied(before[Number(index)], inner);
  }
  return after;
}
