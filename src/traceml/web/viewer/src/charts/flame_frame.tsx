/** Boxes as wide as their values, those below a box under it: moved in by keys, shown alone by Enter. */

import type { ComponentChildren } from "preact";
import { useMemo, useRef, useState } from "preact/hooks";
import { colourVariable } from "../theme";
import type { Below } from "./layer_rows";

export interface BoxWords {
  /** What tells it from all others, also when the numbers are new. */
  key: string;
  label: string;
  /** Everything about it, line by line; the last has its numbers, which nobody looks for. */
  lines: readonly string[];
}

interface Properties {
  below: Below;
  parents: readonly number[];
  values: readonly (number | null)[];
  /** Says what each box is. */
  box: (place: number) => BoxWords;
  paint: (place: number) => string;
  /** Boxes without all of these words are dimmed. */
  words: string;
  label: string;
  /** Beside the button that shows all again. */
  tools?: ComponentChildren;
  /** What is said below of the box that has the focus. */
  said: (place: number) => ComponentChildren;
}

interface Box {
  place: number;
  depth: number;
  /** Of the whole width, 0–1. */
  left: number;
  width: number;
}

const ROW_PX = 26;
const LEAST_WIDTH = 0.0015; // narrower boxes are not drawn
const MOST_DEPTH = 70;
const LABEL_WIDTH = 0.03; // from there on a box has room for its name

export function FlameFrame(properties: Properties) {
  const { below, parents, values, box, paint, words, label, tools, said } = properties;
  const [zoomed, setZoomed] = useState<string | null>(null);
  const [focused, setFocused] = useState<string | null>(null);
  const frame = useRef<HTMLDivElement>(null);
  const root = useMemo(
    () => (zoomed === null ? -1 : parents.findIndex((_, place) => box(place).key === zoomed)),
    [parents, box, zoomed],
  );
  const boxes = useMemo(() => boxesOf(below, parents, values, root), [below, parents, values, root]);
  const current = boxes.find(({ place }) => box(place).key === focused) ?? boxes[0];
  const rows = 1 + boxes.reduce((most, { depth }) => Math.max(most, depth), 0);

  const zoom = (place: number): void => setZoomed(place < 0 ? null : box(place).key);
  const go = (place: number | undefined): void => {
    if (place === undefined || !boxes.some((one) => one.place === place)) return;
    setFocused(box(place).key);
    frame.current?.querySelector<HTMLElement>(`[data-place="${place}"]`)?.focus();
  };
  const press = (event: KeyboardEvent): void => {
    if (current === undefined || event.ctrlKey || event.metaKey || event.altKey) return;
    const beside = boxes.filter(({ depth }) => depth === current.depth);
    const here = beside.findIndex(({ place }) => place === current.place);
    if (event.key === "ArrowUp") go(parents[current.place]);
    else if (event.key === "ArrowDown")
      go(below.of(current.place).find((place) => boxes.some((one) => one.place === place)));
    else if (event.key === "ArrowLeft") go(beside[here - 1]?.place);
    else if (event.key === "ArrowRight") go(beside[here + 1]?.place);
    else if (event.key === "Escape" && root >= 0) setZoomed(null);
    else return;
    event.preventDefault();
  };
  const wanted = words.toLowerCase().split(/\s+/).filter(Boolean);
  return (
    <div class="flame">
      <div class="layer-tools">
        {tools}
        {root >= 0 && (
          <button type="button" class="quiet" onClick={() => setZoomed(null)}>
            Show all
          </button>
        )}
      </div>
      <div class="flame-scroll">
        <div
          ref={frame}
          class="flame-frame"
          role="group"
          aria-label={`${label}; arrow keys move, Enter shows one alone`}
          style={{ height: `${rows * ROW_PX}px` }}
          onKeyDown={press}
        >
          {boxes.map(({ place, depth, left, width }) => {
            const { key, label: name, lines } = box(place);
            const text = lines.slice(0, -1).join(" ").toLowerCase();
            const isFound = wanted.every((word) => text.includes(word));
            return (
              <button
                key={key}
                type="button"
                class={`flame-box${isFound ? "" : " dim"}`}
                data-place={place}
                tabIndex={place === current?.place ? 0 : -1}
                aria-label={lines.join(", ")}
                title={lines.join("\n")}
                style={{
                  left: `${100 * left}%`,
                  width: `${100 * width}%`,
                  top: `${depth * ROW_PX}px`,
                  background: paint(place),
                }}
                onFocus={() => setFocused(key)}
                onMouseEnter={() => setFocused(key)}
                onClick={() => zoom(place === root ? parents[place]! : place)}
              >
                {width >= LABEL_WIDTH && <span>{name}</span>}
              </button>
            );
          })}
        </div>
      </div>
      {current && <p class="note flame-said">{said(current.place)}</p>}
    </div>
  );
}

/** The sum of the values of a box, or of all the outermost ones for -1. */
export function totalOf(below: Below, values: readonly (number | null)[], root: number): number {
  const places = root >= 0 ? [root] : below.of(-1);
  return places.reduce((sum, place) => sum + (values[place] ?? 0), 0);
}

/** Pale, so that words can be read on it. */
export function softOf(colour: string, percent = 38): string {
  return `color-mix(in srgb, ${colourVariable(colour)} ${percent}%, var(--surface))`;
}

/** Everything below a box, from its left edge; the boxes above it are as wide as all. */
function boxesOf(
  below: Below,
  parents: readonly number[],
  values: readonly (number | null)[],
  root: number,
): Box[] {
  const boxes: Box[] = [];
  const above: number[] = [];
  for (let place = root; place >= 0; place = parents[place]!) above.unshift(place);
  above.slice(0, -1).forEach((place, depth) => boxes.push({ place, depth, left: 0, width: 1 }));
  const depth = Math.max(0, above.length - 1);
  const sum = totalOf(below, values, root);
  if (sum <= 0) return boxes;
  const waiting = [{ places: root >= 0 ? [root] : below.of(-1), depth, left: 0 }];
  while (waiting.length > 0) {
    const level = waiting.pop()!;
    let { left } = level;
    for (const place of level.places) {
      const width = (values[place] ?? 0) / sum;
      if (width >= LEAST_WIDTH && level.depth < MOST_DEPTH) {
        boxes.push({ place, depth: level.depth, left, width });
        waiting.push({ places: below.of(place), depth: level.depth + 1, left });
      }
      left += width;
    }
  }
  return boxes.sort((one, other) => one.depth - other.depth || one.left - other.left);
}
