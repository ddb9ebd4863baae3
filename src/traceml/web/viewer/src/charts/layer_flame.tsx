/** The layers as wide as the time they take, those below a layer under it. */

import { useCallback, useMemo, useState } from "preact/hooks";
import type { LayerBar, LayerRows } from "../schema";
import { type BoxWords, FlameFrame, softOf, totalOf } from "./flame_frame";
import { type Below, columnOf, withUnit } from "./layer_rows";

interface Properties {
  data: LayerRows;
  below: Below;
  flames: readonly string[];
  bars: readonly LayerBar[];
  words: string;
}

export function LayerFlame({ data, below, flames, bars, words }: Properties) {
  const [id, setId] = useState(flames[0]!);
  const column = columnOf(data, id) ?? data.columns[0]!;
  const parents = useMemo(() => data.rows.map(({ parent }) => parent), [data]);
  const paint = useMemo(() => painter(data, bars, flames, id), [data, bars, flames, id]);
  const sum = totalOf(below, column.whole, -1);
  const box = useCallback(
    (place: number): BoxWords => {
      const row = data.rows[place]!;
      const many = row.layers > 1 ? ` ×${row.layers}` : "";
      const share = sum > 0 ? (100 * (column.whole[place] ?? 0)) / sum : 0;
      const time = `${withUnit(column, column.whole[place])}, ${share.toFixed(1)}%`;
      const lines = [`${row.name}${many}`, row.kind, time].filter(Boolean);
      return { key: row.name, label: `${row.label}${many}`, lines };
    },
    [data, column, sum],
  );
  return (
    <FlameFrame
      below={below}
      parents={parents}
      values={column.whole}
      box={box}
      paint={paint}
      words={words}
      label="Layers, as wide as their time"
      tools={
        <>
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
          <Keys data={data} bars={bars} flames={flames} isWhole={id === flames[0]} />
        </>
      }
      said={(place) => (
        <>
          <b>{data.rows[place]!.name}</b> {data.rows[place]!.kind}
          {flames.flatMap((name) => {
            const each = columnOf(data, name);
            const text = each && withUnit(each, each.whole[place]);
            return text ? [` · ${each.label} ${text}`] : [];
          })}
        </>
      )}
    />
  );
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
