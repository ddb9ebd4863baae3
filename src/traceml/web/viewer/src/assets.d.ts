/** What esbuild bundles beside TypeScript. */
declare module "*.css";
