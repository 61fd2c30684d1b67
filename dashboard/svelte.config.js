// The file exists so that tools find the folder of the page. The defaults are enough.
export default {};
