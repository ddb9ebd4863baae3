/** How curves of learning are drawn: smoothed or not, on which axis; one choice for all of them. */

import { useEffect, useState } from "preact/hooks";
import { readChoice, writeChoices } from "../address";

export const MAX_SMOOTHING = 0.99;

export interface CurveChoice {
  /** The weight of what came before, 0 (none) to 0.99: an exponential moving average. */
  smoothing: number;
  isLog: boolean;
}

let choice: CurveChoice = {
  smoothing: smoothingIn(readChoice("smooth")),
  isLog: readChoice("log") === "1",
};
const listeners = new Set<() => void>();

function smoothingIn(text: string | null): number {
  const value = Number(text ?? 0);
  return value > 0 && value <= MAX_SMOOTHING ? value : 0;
}

export function chooseCurves(news: Partial<CurveChoice>): void {
  choice = { ...choice, ...news };
  writeChoices({
    smooth: choice.smoothing > 0 ? String(choice.smoothing) : null,
    log: choice.isLog ? "1" : null,
  });
  for (const listener of listeners) listener();
}

export function useCurves(): CurveChoice {
  const [chosen, setChosen] = useState(choice);
  useEffect(() => {
    const follow = (): void => setChosen(choice);
    listeners.add(follow);
    follow();
    return () => void listeners.delete(follow);
  }, []);
  return chosen;
}

/**
 * The exponential moving average, without its bias to zero at the start. `usual` is the distance of
 * two points of the whole curve: where finer values were fetched, each counts accordingly less.
 */
export function smoothed(
  at: readonly number[],
  values: readonly (number | null)[],
  weight: number,
  usual: number,
): (number | null)[] {
  let [sum, total] = [0, 0];
  let last: number | null = null;
  return values.map((value, index) => {
    if (value === null) return null;
    const distance = last === null ? 1 : Math.max(0, (at[index]! - last) / (usual || 1));
    const kept = weight ** distance;
    sum = sum * kept + value * (1 - weight);
    total = total * kept + (1 - weight);
    last = at[index]!;
    return sum / total;
  });
}

/** The middle one of the distances between two points. */
export function usualDistance(at: readonly number[]): number {
  const distances = at.slice(1).map((place, index) => place - at[index]!);
  distances.sort((one, other) => one - other);
  return distances[distances.length >> 1] ?? 1;
}
