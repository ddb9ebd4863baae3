/** The layers as wide as the time they take, those below a layer under it. */

import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import type { LayerBar, LayerColumn, LayerRows } from "../schema";
import { colourVariable } from "../theme";
import { type Below, columnOf, withUnit } from "./layer_rows";

interface Properties {
  data: LayerRows;
  below: Below;
  flames: readonly string[];
  bars: readonly LayerBar[];
  words: string;
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
const MOST_DEPTH = 40;
const LABEL_WIDTH = 0.03; // from there on a box has room for its name

export function LayerFlame({ data, below, flames, bars, words }: Properties) {
  const [id, setId] = useState(flames[0]!);
  const [zoomed, setZoomed] = useState(-1);
  const [focus, setFocus] = useState(-1);
  const frame = useRef<HTMLDivElement>(null);
  useEffect(() => {
    setZoomed(-1);
    setFocus(-1);
  }, [data]);
  const column = columnOf(data, id) ?? data.columns[0]!;
  const root = zoomed < data.rows.length ? zoomed : -1;
  const boxes = useMemo(() => boxesOf(data, below, column, root), [data, below, column, root]);
  const paint = useMemo(() => painter(data, bars, flames, id), [data, bars, flames, id]);
  const current = boxes.find(({ place }) => place === focus) ?? boxes[0];
  const sum = totalOf(below, column, root);
  const rows = 1 + boxes.reduce((most, { depth }) => Math.max(most, depth), 0);

  const go = (place: number | undefined): void => {
    if (place === undefined || !boxes.some((box) => box.place === place)) return;
    setFocus(place);
    frame.current?.querySelector<HTMLElement>(`[data-place="${place}"]`)?.focus();
  };
  const press = (event: KeyboardEvent): void => {
    if (current === undefined || event.ctrlKey || event.metaKey || event.altKey) return;
    const above = data.rows[current.place]!.parent;
    const beside = boxes.filter(({ depth }) => depth === current.depth);
    const here = beside.findIndex(({ place }) => place === current.place);
    if (event.key === "ArrowUp") go(above);
    else if (event.key === "ArrowDown")
      go(below.of(current.place).find((place) => boxes.some((box) => box.place === place)));
    else if (event.key === "ArrowLeft") go(beside[here - 1]?.place);
    else if (event.key === "ArrowRight") go(beside[here + 1]?.place);
    else if (event.key === "Escape" && root >= 0) setZoomed(-1);
    else return;
    event.preventDefault();
  };
  const wanted = words.toLowerCase().split(/\s+/).filter(Boolean);
  const isFound = (place: number): boolean => {
    const { name, kind } = data.rows[place]!;
    return wanted.every((word) => `${name} ${kind}`.toLowerCase().includes(word));
  };
  return (
    <div class="flame">
      <div class="layer-tools">
        {flames.length > 1 && (
          <div class="layer-views" role="group" aria-label="Which time is the width">
            {flames.map((name) => (
              <button
                key={name}
                type="button"
                class="plain"
                aria-pressed={name === id}
                onClick={() => setId(name)}
              >
                {columnOf(data, name)?.label ?? name}
              </button>
            ))}
          </div>
        )}
        {root >= 0 && (
          <button type="button" class="quiet" onClick={() => setZoomed(-1)}>
            Show all
          </button>
        )}
        <Keys data={data} bars={bars} flames={flames} isWhole={id === flames[0]} />
      </div>
      <div
        ref={frame}
        class="flame-frame"
        role="group"
        aria-label="Layers, as wide as their time; arrow keys move, Enter shows one alone"
        style={{ height: `${rows * ROW_PX}px` }}
        onKeyDown={press}
      >
        {boxes.map(({ place, depth, left, width }) => {
          const row = data.rows[place]!;
          const said = `${row.name}${row.layers > 1 ? ` ×${row.layers}` : ""}`;
          const share = sum > 0 ? (100 * (column.whole[place] ?? 0)) / sum : 0;
          const time = `${withUnit(column, column.whole[place])}, ${share.toFixed(1)}%`;
          return (
            <button
              key={place}
              type="button"
              class={`flame-box${wanted.length > 0 && !isFound(place) ? " dim" : ""}`}
              data-place={place}
              tabIndex={place === current?.place ? 0 : -1}
              aria-label={`${said}, ${row.kind}: ${time}`}
              title={[said, row.kind, time].filter(Boolean).join("\n")}
              style={{
                left: `${100 * left}%`,
                width: `${100 * width}%`,
                top: `${depth * ROW_PX}px`,
                background: paint(place),
              }}
              onFocus={() => setFocus(place)}
              onMouseEnter={() => setFocus(place)}
              onClick={() => setZoomed(place === root ? row.parent : place)}
            >
              {width >= LABEL_WIDTH && (
                <span>
                  {row.label}
                  {row.layers > 1 && ` ×${row.layers}`}
                </span>
              )}
            </button>
          );
        })}
      </div>
      {current && (
        <p class="note flame-said">
          <b>{data.rows[current.place]!.name}</b> {data.rows[current.place]!.kind}
          {flames.flatMap((name) => {
            const each = columnOf(data, name);
            const text = each && withUnit(each, each.whole[current.place]);
            return text ? [` · ${each.label} ${text}`] : [];
          })}
        </p>
      )}
    </div>
  );
}

/** Everything below a row, from its left edge; the rows above it are as wide as all. */
function boxesOf(data: LayerRows, below: Below, column: LayerColumn, root: number): Box[] {
  const boxes: Box[] = [];
  const above: number[] = [];
  for (let place = root; place >= 0; place = data.rows[place]!.parent) above.unshift(place);
  above.slice(0, -1).forEach((place, depth) => boxes.push({ place, depth, left: 0, width: 1 }));
  const depth = Math.max(0, above.length - 1);
  const sum = totalOf(below, column, root);
  if (sum <= 0) return boxes;
  const waiting = [{ places: root >= 0 ? [root] : below.of(-1), depth, left: 0 }];
  while (waiting.length > 0) {
    const level = waiting.pop()!;
    let { left } = level;
    for (const place of level.places) {
      const width = (column.whole[place] ?? 0) / sum;
      if (width >= LEAST_WIDTH && level.depth < MOST_DEPTH) {
        boxes.push({ place, depth: level.depth, left, width });
        waiting.push({ places: below.of(place), depth: level.depth + 1, left });
      }
      left += width;
    }
  }
  return boxes.sort((one, other) => one.depth - other.depth || one.left - other.left);
}

function totalOf(below: Below, column: LayerColumn, root: number): number {
  const places = root >= 0 ? [root] : below.of(-1);
  return places.reduce((sum, place) => sum + (column.whole[place] ?? 0), 0);
}

/** A box of all time has the colours of its phases, each as wide as its share. */
function painter(
  data: LayerRows,
  bars: readonly LayerBar[],
  flames: readonly string[],
  id: string,
): (place: number) => string {
  const parts = (id === flames[0] ? flames.slice(1) : [id]).flatMap((name) => {
    const column = columnOf(data, name);
    return column === undefined ? [] : [{ column, colour: softOf(colourNamed(bars, name)) }];
  });
  return (place) => {
    const values = parts.map(({ column }) => column.whole[place] ?? 0);
    const sum = values.reduce((all, value) => all + value, 0);
    if (parts.length < 2 || sum <= 0) return parts[0]?.colour ?? softOf("muted");
    let from = 0;
    const stops = parts.map(({ colour }, index) => {
      const begin = from;
      from += (100 * values[index]!) / sum;
      return `${colour} ${begin}% ${from}%`;
    });
    return `linear-gradient(to right, ${stops.join(", ")})`;
  };
}

function colourNamed(bars: readonly LayerBar[], id: string): string {
  for (const { columns, colours } of bars) {
    const place = columns.indexOf(id);
    if (place >= 0) return colours[place] ?? "muted";
  }
  return "muted";
}

/** Pale, so that words can be read on it. */
function softOf(colour: string): string {
  return `color-mix(in srgb, ${colourVariable(colour)} 38%, var(--surface))`;
}

function Keys(properties: {
  data: LayerRows;
  bars: readonly LayerBar[];
  flames: readonly string[];
  isWhole: boolean;
}) {
  const { data, bars, flames, isWhole } = properties;
  if (!isWhole || flames.length < 3) return null;
  return (
    <span class="legend">
      {flames.slice(1).map((name) => (
        <span key={name} class="legend-item">
          <span class="swatch" style={{ color: softOf(colourNamed(bars, name)) }} />
          {columnOf(data, name)?.label}
        </span>
      ))}
    </span>
  );
}
