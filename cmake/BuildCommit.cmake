# Run by every build, as a script: writes OUTPUT, which defines build_commit() of trainer/process.h, if
# the commit of SOURCE_DIR is another than before.
cmake_minimum_required(VERSION 3.25)
execute_process(COMMAND git describe --always --dirty
                WORKING_DIRECTORY ${SOURCE_DIR} OUTPUT_VARIABLE commit ERROR_QUIET
                OUTPUT_STRIP_TRAILING_WHITESPACE)
if(NOT commit)
  set(commit unknown)
endif()
file(CONFIGURE OUTPUT ${OUTPUT} @ONLY CONTENT
     "#include \"trainer/process.h\"\n\nnamespace slimgrad::trainer {\nconst char* build_commit() { return \"@commit@\"; }\n}\n")
