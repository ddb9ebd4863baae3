/** The window of a comparison's curves, and where its finer values are asked for. */

import { useContext, useMemo } from "preact/hooks";
import { comparedQuery } from "../place";
import type { Part } from "../schema";
import { BaseContext } from "../served";
import { StepWindows } from "./zoom";

export { WindowContext } from "./zoom";

export function useComparedSteps(parts: readonly Part[]): StepWindows {
  const base = useContext(BaseContext);
  return useMemo(() => {
    if (base === null) return new StepWindows(null, null);
    const curves = parts.flatMap(({ figures }) => figures).filter((figure) => isCurve(figure));
    const query = comparedQuery(curves.map(({ id }) => ["figure", id]));
    return new StepWindows(`${base}/api/compare/detail?${query}`, null);
  }, [base, parts]);
}

function isCurve(figure: Part["figures"][number]): boolean {
  return figure.type === "lines" && figure.is_curve;
}
