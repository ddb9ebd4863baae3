/** A flame graph: which calls take the time, by phase; found by words. */

import { useCallback, useMemo, useState } from "preact/hooks";
import type { FlameGraph } from "../schema";
import { type BoxWords, FlameFrame, softOf } from "./flame_frame";
import { Below } from "./layer_rows";
import "./layers.css";

const PALE = 16; // per cent of the colour, for what is somebody else's

export function FlameGraphView({ figure }: { figure: FlameGraph }) {
  const [id, setId] = useState(figure.views[0]!.id);
  const [words, setWords] = useState("");
  const view = figure.views.find((one) => one.id === id) ?? figure.views[0]!;
  const boxes = view.boxes;
  const below = useMemo(() => new Below(boxes), [boxes]);
  const parents = useMemo(() => boxes.map(({ parent }) => parent), [boxes]);
  const values = useMemo(() => boxes.map(({ value }) => value), [boxes]);
  const keys = useMemo(() => {
    const found: string[] = [];
    for (const { parent, label, place } of boxes)
      found.push(`${parent < 0 ? "" : found[parent]}\n${label} ${place}`);
    return found;
  }, [boxes]);
  const box = useCallback(
    (place: number): BoxWords => {
      const { label, place: where, words: said, is_pale } = boxes[place]!;
      const name = is_pale ? label : `${label} ${where}`;
      return { key: keys[place]!, label: name, lines: [label, where, said].filter(Boolean) };
    },
    [boxes, keys],
  );
  const paint = (place: number): string => {
    const { colour, is_pale } = boxes[place]!;
    return is_pale ? softOf(colour, PALE) : softOf(colour);
  };
  return (
    <div class="layers">
      <div class="layer-tools">
        <div class="layer-views" role="group" aria-label="Which calls are shown">
          {figure.views.map((one) => (
            <button
              key={one.id}
              type="button"
              class="plain"
              title={one.title}
              aria-pressed={one.id === view.id}
              onClick={() => setId(one.id)}
            >
              {one.label}
            </button>
          ))}
        </div>
        <input
          type="search"
          value={words}
          placeholder="Find a function or a file"
          aria-label="Find a function or a file"
          onInput={(event) => setWords(event.currentTarget.value)}
        />
      </div>
      <FlameFrame
        below={below}
        parents={parents}
        values={values}
        box={box}
        paint={paint}
        words={words}
        label="Calls, as wide as their time"
        said={(place) => (
          <>
            <b>{boxes[place]!.label}</b> {boxes[place]!.place} · {boxes[place]!.words}
          </>
        )}
      />
    </div>
  );
}
