/** Whose step is shown: the mean over the ranks, the median, the worst, or one of them. */

import { createContext } from "preact";
import { useContext } from "preact/hooks";
import type { Lens } from "../schema";

interface Lenses {
  chosen: string;
  all: readonly Lens[];
  /** `null` where nothing can be chosen: in a report. */
  choose: ((id: string) => void) | null;
}

export const LensContext = createContext<Lenses>({ chosen: "mean", all: [], choose: null });

export function LensSelect() {
  const { chosen, all, choose } = useContext(LensContext);
  if (choose === null || all.length === 0) return null;
  return (
    <label class="lens">
      Step of{" "}
      <select value={chosen} onChange={(event) => choose(event.currentTarget.value)}>
        {all.map(({ id, label }) => (
          <option key={id} value={id}>
            {label}
          </option>
        ))}
      </select>
    </label>
  );
}
